// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything that follows from the input by arithmetic, before any rank exists: mesh, parameters, stages, schedule.
// Pure: `p3d --check` makes it for any number of ranks.

#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <limits>
#include <string>
#include <vector>

namespace p3d::engine {

/// What the executor does with messages: programs are proved and simulated for it.
inline constexpr schedule::Execution execution{.rendezvous = true, .sends_in_flight = std::numeric_limits<int>::max()};
/// The same, and with comm.overlap_experts pairs.
schedule::Execution execution_of(config::Config const& config);
/// Sets of scratch of a rank: one more where a forward and a backward take turns.
int workspaces_of(config::Config const& config);
/// Whether a rank computes losses: of the last stage, or of its part of the vocabulary.
bool has_loss(config::Config const& config, layout::StageMap const& stages, int pipeline_rank);

struct RunPlan {
  layout::RankGrid grid;
  layout::ParamTable table;
  layout::StageMap stages;
  schedule::ValidProgram training;    ///< one step
  schedule::ValidProgram evaluation;  ///< the same microbatches, forward only
  schedule::ValidProgram probe;       ///< one microbatch, forward only (sampling)
  std::string schedule_note;          ///< why pipeline.schedule = "auto" chose this schedule; else empty
  /// By stage: the sets of activations, as many as the neediest of the programs wants, and what is recomputed.
  std::vector<layout::StageActivations> activations = {};
  /// Bytes of a rank, by pipeline coordinate and purpose. Activations (all slots of its stages) and workspace (the
  /// scratch these share) are exactly what the trainer's arena gives out.
  std::vector<plan::MemoryPrediction> memory = {};
  std::vector<plan::StatePools> pools = {};  ///< by pipeline coordinate

  plan::MemoryPrediction const& memory_of(int pipeline_rank) const {
    return memory.at(static_cast<std::size_t>(pipeline_rank));
  }
};
/// Throws base::Error (bad_input) for a valid program that the trainer cannot run: one that moves weights where nobody
/// does (`moves_weights`: a model::WeightProvider was given), or updates a stage before the rank has all its gradients.
/// `moves_activations`: memory.offload_activations is set.
void require_supported(schedule::Program const& program, bool moves_weights, bool moves_activations);

/// Throws base::Error (bad_input) for a schedule that the input cannot have (plan::plan_pipeline).
RunPlan make_run_plan(config::Config const& config);
/// The same with a given division into stages and a given program of one step, whose stages and placement must be those
/// of `stages`.
RunPlan make_run_plan(config::Config const& config, layout::StageMap stages, schedule::ValidProgram training);

/// Bytes that each pipeline rank takes with these stages and this program: weights, gradients, moments, activations,
/// scratch.
std::vector<double> rank_bytes(config::Config const& config, layout::StageMap const& stages,
                               schedule::Program const& training);

/// Operations per step that recomputation adds to those of the model, counted as these are (plan::flops_per_token).
double recompute_flops_per_step(config::Config const& config, RunPlan const& plan);

/// Bytes per step that the rank with the most writes for memory.offload_activations, and reads back: both.
double offloaded_bytes_per_step(config::Config const& config, RunPlan const& plan);

/// The ranks that together hold a parameter once: over these its pieces are put together. `divided`: replicas own parts
/// of it.
layout::AxisSet gather_axes(layout::ParamSpec const& spec, bool divided);

/// The axes along which ranks exchange rows of experts: ep and etp, where they have more than one rank.
layout::AxisSet expert_exchange_axes(layout::PerAxis const& sizes);

/// The axes over which the vocabulary is divided, where it is divided over the pipeline.
layout::AxisSet vocabulary_axes(layout::PerAxis const& sizes);

/// The groups that training makes communicators of, by their axes: what the layers and the schedule need, then what the
/// parameters need, without axes of one rank (so that equal groups are one). `divided`: replicas own parts of the
/// state.
std::vector<layout::AxisSet> communicator_sets(layout::ParamTable const& table, layout::PerAxis const& sizes,
                                               bool divided);

/// Microbatches of one rank and step, and the global number of the first sample of one of them. Samples of a global
/// batch are dealt to dp coordinates in contiguous blocks, each cut into microbatches.
std::int64_t first_sample(config::Config const& config, std::int64_t step, int dp, int microbatch);

}  // namespace p3d::engine
