// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a stage, of which each replica owns a part, made whole.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/shards.hpp>

#include <functional>
#include <vector>

namespace p3d::parallel {

/// Gathers a stage's values, bucket by bucket. Traffic for each gather and rank: one all-gather of the stage's
/// parameters over the gradient axes. T: float, double, device::bfloat16 or device::float16.
template <class T>
class WeightGatherer {
public:
  /// `whole`: the stage's flat buffer. It, `shard` and what `communicator` gives outlive the gatherer.
  WeightGatherer(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> whole,
                 std::function<comm::Communicator&(layout::AxisSet)> const& communicator);
  /// This rank's parts are in `whole`: starts to fetch the others'.
  void start();
  /// Waits until all parts are there; does nothing where nothing was started.
  void finish();

private:
  device::ExecSpace exec_;
  layout::StateShard const* shard_;
  device::View1<T> whole_;
  std::vector<comm::Communicator*> communicators_;  ///< by bucket
  std::vector<comm::Request> requests_;
};

}  // namespace p3d::parallel
