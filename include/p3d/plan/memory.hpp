// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of a rank, before the run. Weights, gradients and moments follow from the parameter table, activations and
// workspace from the table of buffers (run_plan.hpp adds them up). An example: AdamW in fp32 on one rank takes 4 bytes
// of weights, 4 of gradients and 8 of moments for each parameter.

#include <p3d/base/memory_sizes.hpp>
#include <p3d/layout/buffers.hpp>
#include <p3d/layout/compression.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/shards.hpp>
#include <p3d/plan/pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace p3d::config {
struct Config;
}  // namespace p3d::config

namespace p3d::plan {

/// Bytes of one number of each type of the run's precision (device/precision.hpp).
struct TypeBytes {
  std::int64_t storage = 4, gradient = 4, master = 4, moment = 4;
  bool has_master = false;  ///< the optimizer keeps weights of its own
};
TypeBytes type_bytes(config::Config const& config);
/// Bytes of the optimizer's state for one number of a parameter, without master weights.
std::int64_t state_bytes(config::Config const& config);
/// Bytes of the types in which activations are kept and summed.
layout::ElementBytes element_bytes(config::Config const& config);
/// True when gradients travel between replicas in fewer bits than they have, for which they need a second buffer.
bool reduces_narrow(config::Config const& config);

/// When a bucket of gradients is closed (comm.bucket_mb, comm.bucket_layers).
layout::BucketRule bucket_rule(config::Config const& config);
/// How memory.shard and memory.shard_over divide a stage's state; `here`: the rank's coordinates.
layout::StateShard state_shard(config::Config const& config, layout::StageParams const& params,
                               layout::PerAxis const& here);
/// How comm.compress compresses the gradients of a stage. The input must compress.
layout::Compression stage_compression(config::Config const& config, layout::StageParams const& params);
/// Elements of a stage's state that the rank at `here` owns: StateShard::owned_size, without making the shard where
/// nothing is divided.
std::int64_t owned_elements(config::Config const& config, layout::StageParams const& params,
                            layout::PerAxis const& here);

/// A choice among the arrays of the state of owned parameters. Where the precision has no master weights, `master` are
/// the values that layers read, and `values` is false.
struct StateParts {
  bool master = false;
  std::size_t arrays = 0;  ///< the first arrays of the optimizer's state, as config/optimizer_state.hpp orders them
  bool values = false;

  bool any() const { return master || arrays > 0 || values; }
  StateParts operator&(StateParts const& other) const {
    return {master && other.master, std::min(arrays, other.arrays), values && other.values};
  }
  StateParts operator|(StateParts const& other) const {
    return {master || other.master, std::max(arrays, other.arrays), values || other.values};
  }
};
/// The arrays that memory.offload_optimizer and memory.offload_parameters offload.
StateParts offloaded_parts(config::Config const& config);
/// Elements of a piece in which offloaded state is reloaded and written back; `longest`: elements of the rank's longest
/// stage.
std::int64_t staged_elements(std::int64_t longest);

/// The memory of the whole weights and of the whole gradients of a rank's stages. memory.shard divides both between the
/// replicas, so a stage has them whole only for a while, and a program says when.
struct StatePools {
  Pool weights, gradients;
};

/// Bytes of one rank, by purpose.
struct MemoryPrediction {
  std::int64_t params = 0;                 ///< weights that layers read, and the owned ones where replicas divide them
  std::int64_t grads = 0;                  ///< gradients, and the buffer in which they travel, where that is another
  std::int64_t optimizer = 0;              ///< the optimizer's state (config/optimizer_state.hpp) and master weights;
                                           ///< optimizer.post_validation: the copies of weights and state
  std::int64_t activations = 0;            ///< saved by forward for backward, all slots
  std::int64_t workspace = 0;              ///< scratch, communication buffers, batch
  std::int64_t panels = 0;                 ///< in which the host's threads widen numbers of 16 bits
  std::int64_t staging = 0;                ///< through which offloaded state comes and goes
  std::int64_t libraries = 0;              ///< the process itself (host_library_bytes; on GPUs gpu_library_bytes)
  std::int64_t offloaded = 0;              ///< offloaded state (memory.offload_*); not part of the total
  std::int64_t offloaded_activations = 0;  ///< and activations: the room that is taken for them
  std::int64_t offloaded_to_host = 0;      ///< the part of both that is in host memory, beside a model on a GPU
  /// Beside these, in host memory: the copy from which a checkpoint is written while training goes on
  /// (checkpoint.async; 0 where no checkpoints are written), at most.
  std::int64_t checkpoint_copy = 0;
  /// Bytes where the model is: without the copy for checkpoints, which is in host memory also where that is a GPU.
  std::int64_t total() const {
    return params + grads + optimizer + activations + workspace + panels + staging + libraries;
  }
  bool operator==(MemoryPrediction const&) const = default;
};

/// Bytes that a process takes on a host beside the model: the memory in which kernels add up, counted exactly, and what
/// libraries take while they work: buffers of MPI, scratch memory and code of the GEMM library, pages of code.
/// Measured: 12 to 20 MiB a rank with MPICH and oneDNN (benchmarks/plan/own_runs.py), the more the fewer ranks share
/// code.
inline constexpr std::int64_t host_library_bytes =
    base::column_workspace_size(false) * static_cast<std::int64_t>(sizeof(double)) + (std::int64_t{16} << 20);
/// Bytes that a process takes of a GPU before it makes a model: the vendor's context, the code of p3d and of libraries,
/// the GEMM library's handle. Measured: 595 MiB on an H200 (CUDA 13.0, driver 580).
inline constexpr std::int64_t gpu_context_bytes = std::int64_t{595} << 20;
/// gpu_context_bytes; 168 MiB that libraries and Kokkos take later (measured as above: another handle, workspaces of 32
/// MiB, code that is loaded at its first call); and the buffers of `communicators` of NCCL (4 MiB, NCCL_BUFFSIZE, to
/// and from two neighbours in each of 16 channels), an estimate. `p3d` grades the prediction at the end of a run.
/// Where sums have a `fixed_order`, the memory in which each of these communicators adds is counted exactly.
constexpr std::int64_t gpu_library_bytes(int communicators, bool fixed_order) {
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  return gpu_context_bytes + 168 * mib +
         communicators * (16 * 4 * 4 * mib + (fixed_order ? base::fixed_order_workspace : 0));
}

/// The reason why no call of the run could go to a vendor's attention library; "" if some could.
std::string no_fused_attention(config::Config const& config);
/// Bytes that a vendor's attention works in, beside p3d's scratch memory (base::fused_attention_bytes); 0 where no call
/// of the run would go to the library: for that reason, or by linalg.attention.
std::int64_t fused_attention_bytes(config::Config const& config);

/// Bytes of the buffers through which offloaded state is reloaded and written back (engine/offloaded_state.hpp: three
/// sets, so that reading, computing and writing overlap). `longest`: elements of the rank's longest stage.
std::int64_t staging_bytes(config::Config const& config, std::int64_t longest);
/// Bytes of the two buffers into which stages fetch their own weights in turn (engine/sharded_weights.hpp). `longest`:
/// elements of the rank's longest stage.
std::int64_t fetch_bytes(config::Config const& config, std::int64_t longest);

/// The prediction as far as the parameters decide it, for the ranks of one pipeline coordinate (all its stages).
/// Activations and workspace are left at 0. Where replicas divide the state (memory.shard) their shares differ by a few
/// elements; the figure is the first replica's.
MemoryPrediction predict_state_memory(config::Config const& config, layout::ParamTable const& table,
                                      layout::StageMap const& stages, int pipeline_rank, StatePools const& pools = {});
/// Adds what steps without a flush between them take besides (schedule/stream.hpp), where forwards of a stage are
/// `ahead` steps early: the gradients of the step before, until their norm is known (not where delays differ: nobody
/// waits for a norm), and, where master weights are wider than what layers read, so many newer versions rounded.
void add_stream_memory(config::Config const& config, layout::ParamTable const& table, layout::StageMap const& stages,
                       int pipeline_rank, std::vector<int> const& ahead, MemoryPrediction& m);
/// Lays out the pools of a rank for its programs: where a stage's whole weights or gradients lie, and when, follows
/// from the actions of `training` and `others`.
StatePools make_state_pools(config::Config const& config, layout::ParamTable const& table,
                            layout::StageMap const& stages, int pipeline_rank, schedule::Program const& training,
                            std::vector<schedule::Program const*> const& others);

/// A table with one line per pipeline coordinate; coordinates in a row with equal figures share a line.
std::string format(std::vector<MemoryPrediction> const& by_pipeline_rank);

}  // namespace p3d::plan
