// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the schedule that a configuration's pipeline runs, and predicts its cost. An example: pp = 4 with "1f1b" gives
// a program of four lists of actions and four stages, whose costs come from a formula of the model or from a table.

#include <p3d/layout/context.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/stream.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <map>
#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::plan {

using layout::MachineRates;

/// Costs from a formula of the model: GEMMs and causal attention (Keys::seen) of a microbatch's tokens, over tp and cp.
/// A backward for inputs (I) does the GEMMs of the forward and twice its attention, a backward for weights (W) the
/// GEMMs; the head is on the last stage. Where activations are recomputed, B and I cost that much more. With
/// parallel.cp and parallel.sequence a message has the largest share of the tokens. The waits of attention for other
/// ranks of cp (layout::context_wait), and of layers for those of their experts (expert_wait), count in F, and in B and
/// I.
PipelineCosts model_costs(config::Config const& config, layout::StageMap const& stages, MachineRates const& rates = {});

/// Costs as CSV: a line "stage,forward,input,weight" and one for every stage, in seconds (with ",backward" where an
/// undivided backward does not take as long as I and W do); with pipeline.vocab_parallel a line
/// "vocabulary,E,S,T,G,sum, broadcast,gather" (VocabularyCost); then, where they are not free, "send,<seconds>",
/// "receive,<seconds>", "latency,<seconds>", "bandwidth,<bytes per second>" and "message_bytes,<bytes>". parse_costs()
/// throws base::Error with the line.
std::string to_csv(PipelineCosts const& costs);
PipelineCosts parse_costs(std::string_view text, int num_stages);

/// Bytes that each pipeline rank needs under a program, everything counted (plan::rank_bytes, for a platform).
using RankBytes = std::function<std::vector<double>(layout::StageMap const&, schedule::Program const&)>;

/// The schedule of a run, proved.
struct PipelinePlan {
  std::string schedule;  ///< a generator's name, or "file"
  schedule::ValidProgram program;
  layout::StageMap stages;
  std::string reason;  ///< why "auto" chose this schedule; empty for any other one
};

/// Makes the program of pipeline.schedule and deals the layers to its stages. Throws base::Error (bad_input), with the
/// key as `where`, for what the schedule cannot do (it names the smallest number of microbatches that works), and for a
/// file that does not fit the input or is not valid (with the rank x step table). "auto" simulates every schedule with
/// model_costs() and takes the quickest of those whose every rank stays within pipeline.max_memory; of equals the one
/// with the least memory. `execution`: what the program is proved and simulated for.
PipelinePlan plan_pipeline(config::Config const& config, RankBytes const& rank_bytes = {},
                           schedule::Execution execution = {});

/// The steps of a run whose pipeline does not empty between them, if it has such.
struct StreamPlan {
  std::optional<schedule::Stream> stream;
  std::string note;  ///< a line that says so, or why the pipeline empties although gradients are late; else empty
};

/// Whether nothing in an input makes the pipeline empty between steps, unless its schedule does.
bool may_stream(config::Config const& config);
/// Makes the program of steps that follow each other without a flush (pipeline.flush), for the schedule and the stages
/// of `pipeline`. Throws base::Error (bad_input) where pipeline.flush = "never" and something needs a flush.
StreamPlan plan_stream(config::Config const& config, PipelinePlan const& pipeline, schedule::Execution execution);

/// One schedule in a comparison with others.
struct Candidate {
  std::string schedule;
  int stages_per_rank = 1;
  std::string refused;  ///< why it cannot be had; then the other members say nothing
  Simulation result;
  double rank_bytes = 0;  ///< bytes of the rank that needs most; 0: not known
};

/// Every schedule that the configuration could name, simulated; the refused ones last, the others by step time (then
/// memory). `costs` gives the costs of a division into stages.
std::vector<Candidate> compare_schedules(config::Config const& config,
                                         std::function<PipelineCosts(layout::StageMap const&)> const& costs,
                                         RankBytes const& rank_bytes = {}, schedule::Execution execution = {},
                                         bool record = false);

}  // namespace p3d::plan
