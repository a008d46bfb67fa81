// SPDX-License-Identifier: Apache-2.0
#pragma once
// The whole weights of a stage, gathered from the replicas, of which each owns a part.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/shards.hpp>

#include <functional>
#include <vector>

namespace p3d::parallel {

/// The communicators of hybrid sharding (StateShard::over); null without it.
struct ReplicaGroups {                    ///< the neighbours that own the state as a group
  comm::Communicator* own = nullptr;      ///< the replicas in all groups that own the same part
  comm::Communicator* between = nullptr;  ///< the replicas of all groups that own the same
};

/// Gathers a stage's values, bucket by bucket. Traffic for each gather and rank: one all-gather of the stage's
/// parameters over the gradient axes, or within the rank's own group. T is float, double, device::bfloat16 or
/// device::float16.
template <class T>
class WeightGatherer {
public:
  /// `whole` is the stage's flat buffer. It, `shard` and the communicators that `communicator` gives must outlive the
  /// gatherer.
  WeightGatherer(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> whole,
                 std::function<comm::Communicator&(layout::AxisSet)> const& communicator, ReplicaGroups groups = {});
  /// Starts to fetch the parts of other ranks. This rank's own parts must be in `whole` already.
  void start();
  /// Waits until all parts are there; does nothing where nothing was started.
  void finish();

private:
  device::ExecSpace exec_;
  layout::StateShard const* shard_;
  device::View1<T> whole_;
  std::vector<comm::Communicator*> communicators_;  ///< one for each bucket
  std::vector<comm::Request> requests_;
};

/// Exchanges gradients of hybrid buckets. `packed` holds the gradients that this rank owns, one behind the other. Every
/// rank has the sums of its part (StateShard::parts) and gets the sums of the other parts that it owns. It is one
/// all-gather of a bucket's owned elements between the groups, which waits.
template <class T>
void exchange_gradients(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> packed,
                        ReplicaGroups const& groups);

}  // namespace p3d::parallel
