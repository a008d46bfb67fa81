// SPDX-License-Identifier: Apache-2.0
// The reduction of gradients by buckets, and the squared norm. A bucket's message starts as soon as its last parameter
// is ready, while backward still runs; finish() only waits for messages that are under way.
#include <p3d/parallel/gradients.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <algorithm>
#include <functional>
#include <type_traits>

namespace p3d::parallel {

namespace {

using Range = Kokkos::pair<std::int64_t, std::int64_t>;

}  // namespace

template <class T>
GradientReducer<T>::GradientReducer(ExecSpace const& exec, layout::StateShard const& shard, View1<T> gradients,
                                    std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                                    View1<device::bfloat16> wire)
    : exec_(exec), shard_(&shard), gradients_(gradients), wire_(wire) {
  for (auto const& b : shard.buckets) {
    auto& replicas = communicator(b.axes);
    layout::require_part(shard, buckets_.size(), replicas.rank(), replicas.size());
    bucket_of_.resize(b.last, buckets_.size());
    buckets_.push_back({0, &replicas, {}});
  }
}

template <class T>
void GradientReducer<T>::begin(bool sums) {
  sums_ = sums;
  for (auto& b : buckets_) b.ready = 0;
}

template <class T>
void GradientReducer<T>::ready(std::size_t first, std::size_t last) {
  for (std::size_t i = last; i-- > first;) {
    auto const at = bucket_of_[i];
    auto& b = buckets_[at];
    auto const parameters = shard_->buckets[at].last - shard_->buckets[at].first;
    P3D_REQUIRE(b.ready < parameters, "a parameter is marked ready once a step");
    if (++b.ready == parameters && sums_) b.request = start(at);
  }
  // MPI libraries advance a reduction only inside calls, so the reductions under way are tested here.
  for (auto& b : buckets_) {
    if (b.request.active()) b.request.test();
  }
}

template <class T>
template <class S>
comm::Request GradientReducer<T>::start_message(View1<S> whole, std::size_t bucket) {
  auto& communicator = *buckets_[bucket].communicator;
  if (shard_->sums_whole) return collectives::start_all_reduce<S>(exec_, communicator, whole);
  return collectives::start_reduce_scatter<S>(exec_, communicator, whole, shard_->bounds[bucket]);
}

template <class T>
comm::Request GradientReducer<T>::start(std::size_t bucket) {
  auto const& b = shard_->buckets[bucket];
  View1<T> const whole = Kokkos::subview(gradients_, Range(b.begin, b.end));
  if (summer_) {
    if (auto request = summer_(bucket, whole)) return std::move(*request);
  }
  if (buckets_[bucket].communicator->size() == 1) return {};
#if P3D_16BIT
  if constexpr (std::is_same_v<T, float>) {
    if (wire_.extent(0) > 0) {
      View1<device::bfloat16> const rounded = Kokkos::subview(wire_, Range(b.begin, b.end));
      kernels::convert<float, device::bfloat16>(exec_, View1<float const>(whole), rounded);
      auto request = start_message<device::bfloat16>(rounded, bucket);
      request.on_complete([exec = exec_, rounded, whole] {
        kernels::convert<device::bfloat16, float>(exec, View1<device::bfloat16 const>(rounded), whole);
      });
      return request;
    }
  }
#endif
  return start_message<T>(whole, bucket);
}

template <class T>
void GradientReducer<T>::finish() {
  for (std::size_t at = 0; at < buckets_.size(); ++at) {
    auto& b = buckets_[at];
    P3D_REQUIRE(b.ready == shard_->buckets[at].last - shard_->buckets[at].first,
                "every gradient is complete before the reduction ends");
    if (b.request.active()) b.request.wait();
  }
}

template <class T>
void add_sum_squares(ExecSpace const& exec, std::span<StageGradients<T> const> stages, bool packed,
                     layout::PerAxis const& here, View1<double> sum) {
  struct Bucket {
    StageGradients<T> const* stage;
    std::size_t number;
    layout::ParamSpec const* first;
  };
  std::vector<Bucket> buckets;
  for (auto const& stage : stages)
    for (std::size_t at = 0; at < stage.shard->buckets.size(); ++at)
      buckets.push_back({&stage, at, stage.params->items()[stage.shard->buckets[at].first].spec});
  // One of a rank's pieces may hold the embedding and the head, which lie apart in the model.
  std::ranges::sort(buckets, std::less<>(), &Bucket::first);
  std::vector<kernels::Segment> segments;
  for (std::size_t at = 0; at < buckets.size(); ++at) {
    auto const& stage = *buckets[at].stage;
    auto const& part = stage.shard->parts[buckets[at].number];
    auto const counts = [&](layout::ParamSpec const& spec) {
      return here.zero(spec.repeated_axes()) && !(spec.tied && !stage.is_first_stage);
    };
    // Neighbouring parameters that count form one segment: the padding between them is zero.
    std::int64_t begin = -1, end = -1;
    auto const add = [&] {
      if (begin < 0) return;
      auto const shift = packed ? part.packed - part.begin : 0;
      segments.push_back({begin + shift, end - begin});
      begin = -1;
    };
    layout::for_parameters(*stage.params, part.begin, part.count,
                           [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                             if (!counts(*item.spec)) return add();
                             if (begin < 0) begin = item.offset + first;
                             end = item.offset + first + count;
                           });
    add();
    if (at + 1 < buckets.size() && buckets[at + 1].stage == &stage) continue;
    kernels::add_sum_squares<T>(exec, stage.gradients, segments, sum);
    segments.clear();
  }
}

#define P3D_INSTANTIATE(T)                                                                                             \
  template class GradientReducer<T>;                                                                                   \
  template void add_sum_squares<T>(ExecSpace const&, std::span<StageGradients<T> const>, bool, layout::PerAxis const&, \
                                   View1<double>);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
