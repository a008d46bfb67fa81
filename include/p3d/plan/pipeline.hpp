// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a configuration to the schedule that its pipeline runs, and to what that will cost.

#include <p3d/layout/context.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::plan {

using layout::MachineRates;

/// Costs from a formula of the model: matrix products and causal attention (Keys::seen) of a microbatch's tokens, over
/// tp and cp. The input part has the products of the forward and twice its attention, the weight part the products; the
/// head is on the last stage. Where activations are remade, so much more for B and I. With parallel.cp and
/// parallel.sequence messages are of the largest share of the tokens. What attention waits for other ranks of cp
/// (layout::context_wait), and layers for those of their experts (expert_wait), is a part of F, and of B and I.
PipelineCosts model_costs(config::Config const& config, layout::StageMap const& stages, MachineRates const& rates = {});

/// Costs as CSV: a line "stage,forward,input,weight" and one for every stage, in seconds (with ",backward" where an
/// undivided backward does not take as long as its parts); with pipeline.vocab_parallel a line "vocabulary,E,S,T,G,sum,
/// broadcast,gather" (VocabularyCost); then, where they are not free, "send,<seconds>",
/// "receive,<seconds>", "latency,<seconds>", "bandwidth,<bytes per second>" and "message_bytes,<bytes>". parse_costs()
/// throws base::Error with the line.
std::string to_csv(PipelineCosts const& costs);
PipelineCosts parse_costs(std::string_view text, int num_stages);

/// Bytes that each pipeline rank needs under a program, everything counted; the rooms that allocate know it.
using RankBytes = std::function<std::vector<double>(layout::StageMap const&, schedule::Program const&)>;

/// The schedule of a run, proved.
struct PipelinePlan {
  std::string schedule;  ///< a generator's name, or "file"
  schedule::ValidProgram program;
  layout::StageMap stages;
  std::string reason;  ///< of "auto": why this one. Empty otherwise
};

/// Makes the program of pipeline.schedule and deals the layers to its stages. Throws base::Error (bad_input), with the
/// key as `where`, for what the schedule cannot do (it names the smallest number of microbatches that works), and for a
/// file that does not fit the input or is not valid (with the rank x step table). "auto" simulates every schedule with
/// model_costs() and takes the quickest of those whose every rank stays within pipeline.max_memory; of equals the one
/// with the least memory. `execution`: what the program is proved and simulated for.
PipelinePlan plan_pipeline(config::Config const& config, RankBytes const& rank_bytes = {},
                           schedule::Execution execution = {});

/// One schedule beside others.
struct Candidate {
  std::string schedule;
  int stages_per_rank = 1;
  std::string refused;  ///< why it cannot be had; then nothing below counts
  Simulation result;
  double rank_bytes = 0;  ///< of the worst rank; 0: not known
};

/// Every schedule that the configuration could name, simulated; the refused ones last, the others by step time (then
/// memory). `costs` gives the costs of a division into stages.
std::vector<Candidate> compare_schedules(config::Config const& config,
                                         std::function<PipelineCosts(layout::StageMap const&)> const& costs,
                                         RankBytes const& rank_bytes = {}, schedule::Execution execution = {},
                                         bool record = false);

}  // namespace p3d::plan
