// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradient reduction in buckets while the backward pass still runs, and the global gradient norm.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>

#include <functional>
#include <vector>

namespace p3d::parallel {

using device::ExecSpace;
using device::View1;

/// Reduces one stage's flat gradient buffer. A bucket is a run of neighbouring parameters with the same gradient axes
/// and at least `bucket_bytes` together (the last may be smaller); its all-reduce starts when the last of its
/// parameters is ready. All ranks of a group make the same buckets and mark parameters ready in the same order, so
/// messages match. Traffic per step and rank: one all-reduce of the stage's parameters over the gradient axes.
template <class T>
class GradientReducer {
public:
  /// `communicator(axes)` gives the communicator over a set of axes; it must outlive the reducer. `wire`: as large as
  /// `gradients`: in it they travel, rounded to bfloat16; empty: they travel as they are.
  GradientReducer(ExecSpace const& exec, layout::StageParams const& params, View1<T> gradients,
                  std::function<comm::Communicator&(layout::AxisSet)> const& communicator, std::size_t bucket_bytes,
                  View1<device::bfloat16> wire = {});

  /// Forgets what was ready: call before the first backward of a step.
  void begin();
  /// The gradients of parameters [first, last) (indices into StageParams::items) are final on this rank.
  void ready(std::size_t first, std::size_t last);
  /// Waits until all buckets are reduced. Every parameter must be ready.
  void finish();
  std::size_t num_buckets() const { return buckets_.size(); }

private:
  struct Bucket {
    std::int64_t begin = 0;  ///< elements of the flat buffer
    std::int64_t end = 0;
    std::size_t parameters = 0;
    std::size_t ready = 0;
    comm::Communicator* communicator = nullptr;
    comm::Request request;
  };
  comm::Request start(Bucket const& bucket);

  ExecSpace exec_;
  View1<T> gradients_;
  View1<device::bfloat16> wire_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;
};

/// This rank's share of the squared global gradient norm: every element of the model is counted on exactly one rank of
/// the mesh. Reduced gradients are the same on the ranks along a parameter's gradient axes, so each takes its part of
/// it. Where it is repeated (ParamSpec::repeated_axes), the first rank counts; the last stage's replica of tied
/// embeddings does not count. `sizes` of the mesh, and this rank's coordinates.
template <class T>
double local_sum_squares(ExecSpace const& exec, layout::StageParams const& params, View1<T const> gradients,
                         layout::PerAxis const& sizes, layout::PerAxis const& here, bool is_first_stage);

}  // namespace p3d::parallel
