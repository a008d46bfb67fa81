// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes that tensor parallelism sends, before the run: arXiv 2205.05198, section 4.2.2. Pure arithmetic on the
// configuration and its program.

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
TensorTraffic tensor_traffic(config::Config const& config, layout::StageMap const& stages,
                             std::vector<layout::StageActivations> const& activations, schedule::Program const& program,
                             int pipeline_rank);

}  // namespace p3d::plan
