// SPDX-License-Identifier: Apache-2.0
// All-gathers of weights by bucket, over all replicas or within a group of hybrid sharding.
#include <p3d/parallel/weights.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/precision.hpp>

#include <vector>

namespace p3d::parallel {

template <class T>
WeightGatherer<T>::WeightGatherer(device::ExecSpace const& exec, layout::StateShard const& shard,
                                  device::View1<T> whole,
                                  std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                                  ReplicaGroups groups)
    : exec_(exec), shard_(&shard), whole_(whole) {
  for (std::size_t i = 0; i < shard.buckets.size(); ++i) {
    auto* const owners = shard.hybrid[i] ? groups.own : &communicator(shard.buckets[i].axes);
    if (shard.hybrid[i]) {
      layout::require_hybrid_part(shard, i, owners->rank(), groups.between->rank());
    } else {
      layout::require_part(shard, i, owners->rank(), owners->size());
    }
    communicators_.push_back(owners);
  }
}

template <class T>
void WeightGatherer<T>::start() {
  P3D_REQUIRE(requests_.empty(), "weights are gathered once at a time");
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    // The ranks of a group own `each` neighbouring parts at a time, and gather those in one message; without hybrid
    // sharding these are all parts.
    auto const& bounds = shard_->bounds[i];
    auto const last = bounds.size() - 1, each = shard_->hybrid[i] ? static_cast<std::size_t>(shard_->over) : last;
    for (std::size_t first = 0; first < last; first += each) {
      std::vector<std::int64_t> own;
      for (std::size_t r = first; r <= first + each; ++r) own.push_back(bounds[r] - bounds[first]);
      auto const begin = shard_->buckets[i].begin + bounds[first];
      device::View1<T> const part =
          Kokkos::subview(whole_, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + own.back()));
      requests_.push_back(collectives::start_all_gather<T>(exec_, *communicators_[i], part, own));
    }
  }
}

template <class T>
void WeightGatherer<T>::finish() {
  for (auto& request : requests_) {
    if (request.active()) request.wait();
  }
  requests_.clear();
}

template <class T>
void exchange_gradients(device::ExecSpace const& exec, layout::StateShard const& shard, device::View1<T> packed,
                        ReplicaGroups const& groups) {
  std::vector<comm::Request> requests;
  for (std::size_t i = 0; i < shard.buckets.size(); ++i) {
    if (!shard.hybrid[i]) continue;
    auto const begin = shard.owned[shard.first_owned[i]].packed;
    std::vector<std::int64_t> bounds;
    for (auto at = shard.first_owned[i]; at < shard.first_owned[i + 1]; ++at)
      bounds.push_back(shard.owned[at].packed - begin);
    auto const& last = shard.owned[shard.first_owned[i + 1] - 1];
    bounds.push_back(last.packed + last.count - begin);
    device::View1<T> const all =
        Kokkos::subview(packed, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + bounds.back()));
    requests.push_back(collectives::start_all_gather<T>(exec, *groups.between, all, bounds));
  }
  for (auto& request : requests)
    if (request.active()) request.wait();
}

#define P3D_INSTANTIATE(S) template class WeightGatherer<S>;
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(T)                                                                                   \
  template void exchange_gradients<T>(device::ExecSpace const&, layout::StateShard const&, device::View1<T>, \
                                      ReplicaGroups const&);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
