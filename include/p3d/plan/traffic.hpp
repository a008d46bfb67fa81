// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes that tensor parallelism (arXiv 2205.05198, section 4.2.2), context parallelism (layout/context.hpp) and experts
// (parallel/experts.hpp) send, before the run. Pure arithmetic on the configuration and its program.

#include <p3d/layout/context.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/schedule/schedule.hpp>

#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::plan {

/// Bytes that the ranks of one tp group give to each other, by kind of collective, as comm counts them: over t ranks n
/// bytes are (t - 1) n in a reduce-scatter or an all-gather, and twice that in an all-reduce.
struct TensorTraffic {
  double all_reduce = 0, reduce_scatter = 0, all_gather = 0;
  double total() const { return all_reduce + reduce_scatter + all_gather; }
};

/// In a step, on the ranks of a pipeline coordinate: activations, their gradients and the loss. Of N x hidden, a layer
/// sums 2 a microbatch forward and 2 backward. With parallel.sequence a sum is a reduce-scatter and a gather; backward
/// gathers the inputs of column-parallel linears once more, and a weight part of its own the gradients of row-parallel
/// outputs. Not counted: gradients of weights (layout::ParamSpec::gradient_axes). `activations`: by stage.
/// `context_rank`: the coordinate of cp, whose tokens these are.
TensorTraffic tensor_traffic(config::Config const& config, layout::StageMap const& stages,
                             std::vector<layout::StageActivations> const& activations, schedule::Program const& program,
                             int pipeline_rank, int context_rank = 0);

/// Bytes that a rank sends to others of cp for the attention of one layer and microbatch, in the mean over them:
/// layout::context_traffic, in the storage type; but the gradients of keys and values that go round a ring, or are
/// scattered, and the numbers for each query and head, are sums, of the type in which kernels sum.
struct ContextTraffic {
  double forward = 0, backward = 0, again = 0;
};
ContextTraffic context_traffic(config::Config const& config);

/// The same of a step, on a rank of a pipeline coordinate: a layer that backward remakes needs what forward sent once
/// more, attention alone no queries, keys and values of an all-to-all.
double context_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                                std::vector<layout::StageActivations> const& activations,
                                schedule::Program const& program, int pipeline_rank);

/// Bytes that a rank sends to others of its group of g = ep etp ranks for the experts of one layer and microbatch, with
/// T tokens a rank in the mean and balanced experts: (g - 1) / g etp T top_k rows each way. Forward: rows in the
/// storage type with their gates (sums), and results back; an integer of 64 bits for each expert to each rank before.
/// Backward: gradients of results out, those of rows and gates back. By gather, (g - 1) T rows each way, gates of all
/// choices, and the choices themselves in place of counts. `again`: counts, rows and gates, for backward.
struct ExpertTraffic {
  double forward = 0, backward = 0, again = 0;
  double back = 0;  ///< of forward, and of backward: what comes back (backward: without gates)
};
ExpertTraffic expert_traffic(config::Config const& config);

/// Of what `stage` remakes in layer l of its own, with experts: the part of forward or of again.
double remade_of_experts(layout::StageRecompute const& recompute, int l, ExpertTraffic const& each);

/// The same of a step, on a rank of a pipeline coordinate.
double expert_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                               std::vector<layout::StageActivations> const& activations,
                               schedule::Program const& program, int pipeline_rank);

/// Seconds that the exchange of one layer and microbatch takes: g - 1 messages of `latency` for each of counts, rows,
/// gates and results forward, for three of these backward, for counts, rows and gates again; and bytes / bandwidth.
ExpertTraffic expert_wait(config::Config const& config, layout::MachineRates const& rates);

}  // namespace p3d::plan
