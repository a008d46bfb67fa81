// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a stage, of which each replica owns a part, made whole.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/shards.hpp>

#include <functional>
#include <vector>

namespace p3d::parallel {

/// The communicators of hybrid sharding (StateShard::over), where there is some.
struct ReplicaGroups {
  comm::Communicator* own = nullptr;      ///< the neighbours that own all of the state together
  comm::Communicator* between = nullptr;  ///< the replicas of all groups that own the same
};

/// Gathers a stage's values, bucket by bucket. Traffic for each gather and rank: one all-gather of the stage's
/// parameters over the gradient axes, or within the rank's own group. T: float, double, device::bfloat16 or
/// device::float16.
template <class T>
class WeightGatherer {
public:
  /// `whole`: the stage's flat buffer. It, `shard` and what `communicator` gives outlive the gatherer.
  WeightGatherer(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> whole,
                 std::function<comm::Communicator&(layout::AxisSet)> const& communicator, ReplicaGroups groups = {});
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

/// Gradients of hybrid buckets that lie one behind the other as they are owned (`packed`): every rank has the sums of
/// its part (StateShard::parts) and gets those of the others that it owns. One all-gather of a bucket's owned elements
/// between the groups.
template <class T>
void exchange_gradients(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> packed,
                        ReplicaGroups const& groups);

}  // namespace p3d::parallel
