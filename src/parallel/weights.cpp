// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/weights.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/precision.hpp>

namespace p3d::parallel {

template <class T>
WeightGatherer<T>::WeightGatherer(device::ExecSpace const& exec, layout::StateShard const& shard,
                                  device::View1<T> whole,
                                  std::function<comm::Communicator&(layout::AxisSet)> const& communicator)
    : exec_(exec), shard_(&shard), whole_(whole) {
  for (auto const& b : shard.buckets) communicators_.push_back(&communicator(b.axes));
}

template <class T>
void WeightGatherer<T>::start() {
  P3D_REQUIRE(requests_.empty(), "weights are gathered once at a time");
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    auto const& b = shard_->buckets[i];
    device::View1<T> const part = Kokkos::subview(whole_, Kokkos::pair<std::int64_t, std::int64_t>(b.begin, b.end));
    requests_.push_back(collectives::start_all_gather<T>(exec_, *communicators_[i], part, shard_->bounds[i]));
  }
}

template <class T>
void WeightGatherer<T>::finish() {
  for (auto& request : requests_) {
    if (request.active()) request.wait();
  }
  requests_.clear();
}

#define P3D_INSTANTIATE(S) template class WeightGatherer<S>;
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
