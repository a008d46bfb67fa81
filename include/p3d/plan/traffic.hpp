// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predicts the bytes that tensor parallelism (arXiv 2205.05198, section 4.2.2), context parallelism
// (layout/context.hpp) and experts (parallel/experts.hpp) send. Pure arithmetic on the configuration and its program.

#include <p3d/layout/context.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/schedule/schedule.hpp>

#include <cstdint>
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

/// The traffic of a step on the ranks of a pipeline coordinate: activations, their gradients and the loss. For each
/// microbatch a layer sums 2 arrays of N x hidden forward and 2 backward, and where model.qk_norm is full N x 2 numbers
/// in each pass. With model.mla the sum behind attention's backward is of N x latents (and of N x hidden besides where
/// queries have no latent). With parallel.sequence a sum is a reduce-scatter and an all-gather; backward gathers the
/// inputs of column-parallel linears once more, and a W of its own the gradients of row-parallel outputs. Where latents
/// travel over cp (layout::ContextDivision::latents), an I of its own gathers latents, and a W of its own does so if
/// queries have one. Gradients of weights are not counted (layout::ParamSpec::gradient_axes). `activations` has an
/// entry for each stage. `context_rank`: the coordinate of cp, whose tokens these are.
TensorTraffic tensor_traffic(config::Config const& config, layout::StageMap const& stages,
                             std::vector<layout::StageActivations> const& activations, schedule::Program const& program,
                             int pipeline_rank, int context_rank = 0);

/// Bytes that a rank sends to others of cp for the attention of one layer and microbatch, in the mean over these ranks:
/// layout::context_traffic in the storage type. The gradients of keys and values, or of latents, that go round a ring,
/// or are scattered, and the numbers for each query and head are sums, so they have the type in which kernels sum; the
/// sum of gradients of latents over the members of a place has the storage type. `again` is
/// what a recomputed attention sends.
struct ContextTraffic {
  double forward = 0, backward = 0, again = 0;
};
ContextTraffic context_traffic(config::Config const& config);

/// Bytes of context_traffic in a step, on a rank of a pipeline coordinate. A layer that backward recomputes sends once
/// more what forward sent; where only attention is recomputed, it sends no queries, keys and values of an all-to-all.
double context_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                                std::vector<layout::StageActivations> const& activations,
                                schedule::Program const& program, int pipeline_rank);

/// Bytes that a rank sends to others of its group of g = ep etp ranks for the experts of one layer and microbatch, with
/// T tokens a rank in the mean and balanced experts: (g - 1) / g etp T top_k rows each way. Forward sends an integer of
/// 64 bits for each expert to each rank, then rows in the storage type with their gates (sums), and results back.
/// Backward sends gradients of results out, and those of rows and gates back. By gather there are (g - 1) T rows each
/// way, gates of all choices, and the choices themselves in place of counts.
struct ExpertTraffic {
  /// `again`: counts, rows and gates, sent once more when backward recomputes the layer.
  double forward = 0, backward = 0, again = 0;
  double back = 0;  ///< the share of forward, and of backward without gates, that returns to the ranks of the tokens
};
ExpertTraffic expert_traffic(config::Config const& config);

/// The share of `each` that a stage sends once more when it recomputes its layer l, which has experts: all of
/// `forward`, `again`, or nothing.
double remade_of_experts(layout::StageRecompute const& recompute, int l, bool norms_after, ExpertTraffic const& each);

/// Bytes of expert_traffic in a step, on a rank of a pipeline coordinate.
double expert_traffic_per_step(config::Config const& config, layout::StageMap const& stages,
                               std::vector<layout::StageActivations> const& activations,
                               schedule::Program const& program, int pipeline_rank);

/// Bytes that all ranks give to each other over dp in a step, for gradients: compressed as comm.compress says, and by a
/// plain all-reduce, or reduce-scatter where memory.shard divides the state. The input must compress.
struct CompressedTraffic {
  std::int64_t compressed = 0, plain = 0;
};
CompressedTraffic compressed_traffic(config::Config const& config, layout::ParamTable const& table,
                                     layout::StageMap const& stages);

/// Seconds of the exchange of one layer and microbatch, in the form of expert_traffic. Forward has g - 1 messages of
/// `latency` for each of counts, rows, gates and results, backward for three of these, `again` for counts, rows and
/// gates; all add bytes / bandwidth.
ExpertTraffic expert_wait(config::Config const& config, layout::MachineRates const& rates);

}  // namespace p3d::plan
