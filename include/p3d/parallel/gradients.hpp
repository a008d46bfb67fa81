// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradient reduction in buckets while the backward pass still runs, and the global gradient norm.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/shards.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace p3d::parallel {

using device::ExecSpace;
using device::View1;

/// Reduces one stage's flat gradient buffer by the buckets of a shard. The message of a bucket starts when the last of
/// its parameters is ready. All ranks of a group make the same buckets and mark parameters ready in the same order, so
/// messages match. Traffic per reduction and rank: one all-reduce of the stage's parameters over the gradient axes.
/// Unless StateShard::sums_whole is set it is one reduce-scatter, half as much: then only this rank's parts
/// (StateShard::parts) hold the sum, with the bits that an all-reduce gives, and the others must not be used.
template <class T>
class GradientReducer {
public:
  /// `communicator(axes)` gives the communicator over a set of axes; the communicators and `shard` must outlive the
  /// reducer. `wire` is empty or as large as `gradients`: then gradients are rounded to bfloat16 in it and sent from
  /// there.
  GradientReducer(ExecSpace const& exec, layout::StateShard const& shard, View1<T> gradients,
                  std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                  View1<device::bfloat16> wire = {});

  /// Somebody else who may sum bucket `bucket`, whose numbers are `whole`, in place. It returns the request of its sum,
  /// or nothing: then the reducer sums. Asked as soon as the bucket is ready, of a group of one rank too.
  using Summer = std::function<std::optional<comm::Request>(std::size_t bucket, View1<T> whole)>;
  void sum_by(Summer summer) { summer_ = std::move(summer); }

  /// Forgets which parameters were ready. Call it before the first backward of a reduction. Without `sums` this one
  /// sums nothing: gradients stay as they are, for the next one.
  void begin(bool sums = true);
  /// Whether the reduction under way sums.
  bool sums() const { return sums_; }
  /// Says that the gradients of parameters [first, last) (indices into StageParams::items) are final on this rank.
  void ready(std::size_t first, std::size_t last);
  /// Waits until all buckets are reduced. Every parameter must be ready.
  void finish();
  std::size_t num_buckets() const { return buckets_.size(); }

private:
  /// A bucket while its parameters become ready and its message is under way.
  struct OpenBucket {
    std::size_t ready = 0;  ///< number of parameters that are ready
    comm::Communicator* communicator = nullptr;
    comm::Request request;
  };
  /// Starts the message of a bucket, rounded to `wire` where there is one.
  comm::Request start(std::size_t bucket);
  /// Starts the all-reduce or reduce-scatter of a bucket's numbers.
  template <class S>
  comm::Request start_message(View1<S> whole, std::size_t bucket);

  ExecSpace exec_;
  layout::StateShard const* shard_;
  View1<T> gradients_;
  View1<device::bfloat16> wire_;
  std::vector<OpenBucket> buckets_;
  Summer summer_;  ///< empty: the reducer sums all
  bool sums_ = true;
  std::vector<std::size_t> bucket_of_;  ///< one for each parameter
};

/// The gradients of one stage, of which a rank adds squares. The stages of a rank have one table of parameters.
template <class T>
struct StageGradients {
  layout::StageParams const* params = nullptr;
  layout::StateShard const* shard = nullptr;
  View1<T const> gradients;
  bool is_first_stage = false;
};

/// This rank's share of the squared global gradient norm: every element of the model is counted on exactly one rank of
/// the mesh. A rank counts its part of each bucket (StateShard::parts), whether the state is sharded or not, so that
/// both give the same bits. Where a parameter is repeated (ParamSpec::repeated_axes), the first rank counts; the last
/// stage's replica of tied embeddings does not count. `packed` says that `gradients` holds the parts one behind the
/// other instead of the flat buffer. `here` are this rank's coordinates. The share is added to sum(0), one bucket after
/// the other in the order of the model, so that the bits do not depend on how a rank's layers are cut into stages; the
/// host does not wait.
template <class T>
void add_sum_squares(ExecSpace const& exec, std::span<StageGradients<T> const> stages, bool packed,
                     layout::PerAxis const& here, View1<double> sum);

}  // namespace p3d::parallel
