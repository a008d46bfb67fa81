// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything that follows from the input by arithmetic, before any rank exists: mesh, parameters, stages, schedule,
// memory. Pure: `p3d --check` makes the plan of any number of ranks on a laptop.

#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/layout/stage_buffers.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/stream.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace p3d::plan {

struct PipelinePlan;

/// The machine that a run computes on, as far as its memory depends on it; by default a host with one thread.
struct Platform {
  bool gpu = false;                ///< kernels run on a GPU, in memory of its own
  bool device_form = false;        ///< kernels have their form for devices, also where tests run it on a host
  bool host_reaches_views = true;  ///< host code may read and write what kernels do
  bool nccl = false;               ///< ranks with GPUs exchange through NCCL
  bool fused_attention = false;    ///< there is a vendor's library for attention
  int threads = 1;                 ///< threads of the host that kernels run on
};

/// How the executor handles messages. Every program is proved and simulated for this.
inline constexpr schedule::Execution execution{.rendezvous = true, .sends_in_flight = std::numeric_limits<int>::max()};
/// The execution of an input, which the planner, the validator, the simulator and the executor all take from here.
/// There are pairs with comm.overlap_experts and with comm.overlap_tp = "microbatch"; ranks of a stage wait for each
/// other inside actions with tensor, context and expert parallelism.
schedule::Execution execution_of(config::Config const& config);
/// The number of sets of scratch of a rank: 2 where a forward and a backward interleave, else 1.
int workspaces_of(config::Config const& config);

/// The plan of a run; every rank makes the same one.
struct RunPlan {
  layout::RankGrid grid;
  layout::ParamTable table;
  layout::StageMap stages;
  schedule::ValidProgram training;    ///< one step
  schedule::ValidProgram evaluation;  ///< forward only, with as many microbatches
  schedule::ValidProgram probe;       ///< one microbatch, forward only (sampling)
  std::string schedule_note;          ///< why pipeline.schedule = "auto" chose this schedule; else empty
  /// Steps that follow each other without a flush, where the pipeline does not empty between them (plan_stream).
  std::optional<schedule::Stream> stream = {};
  std::string flush_note = {};  ///< StreamPlan::note
  /// The sets of activations of each stage, as many as the neediest of the programs wants, and what is recomputed.
  std::vector<layout::StageActivations> activations = {};
  /// Bytes of a rank by purpose, for each pipeline coordinate. Activations (all slots of its stages) and workspace (the
  /// scratch that these share) are exactly what the trainer's arena gives out.
  std::vector<MemoryPrediction> memory = {};
  std::vector<StatePools> pools = {};  ///< one for each pipeline coordinate

  /// How many steps later than its own a step's loss and norm are known.
  int results_late(config::Config const& config) const {
    if (!stream) return 0;
    return config.mixes_delays() ? 1 + stream->most_ahead() : 1;
  }
  MemoryPrediction const& memory_of(int pipeline_rank) const {
    return memory.at(static_cast<std::size_t>(pipeline_rank));
  }
};
/// Throws base::Error (bad_input) for a valid program that the trainer cannot run: it moves weights where nobody does
/// (`moves_weights`: a model::WeightProvider was given) or activations where nobody does (`moves_activations`:
/// memory.offload_activations is set), or it updates a stage before the rank has all its gradients.
void require_supported(schedule::Program const& program, bool moves_weights, bool moves_activations);

/// Makes the plan of an input. Throws base::Error (bad_input) for a schedule that the input cannot have
/// (plan_pipeline).
RunPlan make_run_plan(config::Config const& config, Platform const& platform);
/// Makes a plan with a given division into stages and a given program of one step, whose stages and their ranks must be
/// those of `stages`. `stream`: the same steps without a flush between them, or nothing.
RunPlan make_run_plan(config::Config const& config, layout::StageMap stages, schedule::ValidProgram training,
                      Platform const& platform, std::optional<schedule::Stream> stream = {});

/// The input with a batch of the few microbatches that fill its pipeline, whose program takes less time to make. A
/// schedule from a file has a number of its own, which stays.
config::Config with_few_microbatches(config::Config config);
/// The pipeline of the few microbatches: its stages are those of all of them.
PipelinePlan plan_few_microbatches(config::Config const& config);

/// Bytes that each pipeline rank takes with these stages and this program: weights, gradients, moments, activations,
/// scratch.
std::vector<double> rank_bytes(config::Config const& config, layout::StageMap const& stages,
                               schedule::Program const& training, Platform const& platform);

/// Bytes of each buffer in the activations and in the workspaces of a rank; MemoryPrediction has their sums.
struct ActivationMemory {
  layout::BufferBytes activations, workspace;
  std::int64_t offloaded = 0;  ///< bytes of a swap file for activations
};
ActivationMemory activation_memory(config::Config const& config, RunPlan const& plan, int pipeline_rank,
                                   Platform const& platform);

/// A table of the buffers of the pipeline coordinate that needs the most memory, a line each: name, bytes in its
/// activations and in its workspace, class, content. The last line has the sums of the table of memory.
std::string buffer_table(config::Config const& config, RunPlan const& plan, Platform const& platform);

/// The share of the ranks' time that is lost in a step by simulation: in one with a flush behind it, or, where the
/// pipeline does not empty, in one between two others, which takes a third of what three more steps add to the first
/// one.
double planned_bubble(RunPlan const& plan, PipelineCosts const& costs);

/// Operations per step that recomputation adds to those of the model, counted as these are (flops_per_token).
double recompute_flops_per_step(config::Config const& config, RunPlan const& plan);

/// Bytes per step that the rank with the most writes for memory.offload_activations, and reads back: both.
double offloaded_bytes_per_step(config::Config const& config, RunPlan const& plan);

}  // namespace p3d::plan
