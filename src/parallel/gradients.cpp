// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/gradients.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <algorithm>
#include <type_traits>

namespace p3d::parallel {

template <class T>
GradientReducer<T>::GradientReducer(ExecSpace const& exec, layout::StageParams const& params, View1<T> gradients,
                                    std::function<comm::Communicator&(layout::AxisSet)> const& communicator,
                                    std::size_t bucket_bytes, View1<device::bfloat16> wire)
    : exec_(exec), gradients_(gradients), wire_(wire) {
  auto const& items = params.items();
  bucket_of_.resize(items.size());
  // From the back: that is the order in which a backward pass finishes parameters.
  layout::AxisSet axes;
  bool open = false;
  for (std::size_t i = items.size(); i-- > 0;) {
    auto const& item = items[i];
    if (open && !(item.spec->gradient_axes() == axes)) open = false;
    if (!open) {
      axes = item.spec->gradient_axes();
      auto& b = buckets_.emplace_back();
      b.end = item.offset + item.size();
      b.communicator = &communicator(axes);
      open = true;
    }
    auto& b = buckets_.back();
    b.begin = item.offset;
    ++b.parameters;
    bucket_of_[i] = buckets_.size() - 1;
    if (static_cast<std::size_t>(b.end - b.begin) * sizeof(T) >= bucket_bytes) open = false;
  }
}

template <class T>
void GradientReducer<T>::begin() {
  for (auto& b : buckets_) b.ready = 0;
}

template <class T>
void GradientReducer<T>::ready(std::size_t first, std::size_t last) {
  for (std::size_t i = last; i-- > first;) {
    auto& b = buckets_[bucket_of_[i]];
    P3D_REQUIRE(b.ready < b.parameters, "a parameter is marked ready once a step");
    if (++b.ready == b.parameters && b.communicator->size() > 1) {
      b.request = start(b);
    }
  }
  // MPI libraries advance a reduction only inside calls: give the running ones a push.
  for (auto& b : buckets_) {
    if (b.request.active()) b.request.test();
  }
}

template <class T>
comm::Request GradientReducer<T>::start(Bucket const& b) {
  auto const range = Kokkos::pair<std::int64_t, std::int64_t>(b.begin, b.end);
  View1<T> const part = Kokkos::subview(gradients_, range);
#if P3D_16BIT
  if constexpr (std::is_same_v<T, float>) {
    if (wire_.extent(0) > 0) {
      View1<device::bfloat16> const rounded = Kokkos::subview(wire_, range);
      kernels::convert<float, device::bfloat16>(exec_, View1<float const>(part), rounded);
      auto request = collectives::start_all_reduce<device::bfloat16>(exec_, *b.communicator, rounded);
      request.on_complete([exec = exec_, rounded, part] {
        kernels::convert<device::bfloat16, float>(exec, View1<device::bfloat16 const>(rounded), part);
      });
      return request;
    }
  }
#endif
  return collectives::start_all_reduce<T>(exec_, *b.communicator, part);
}

template <class T>
void GradientReducer<T>::finish() {
  for (auto& b : buckets_) {
    P3D_REQUIRE(b.ready == b.parameters, "every gradient is complete before the reduction ends");
    if (b.request.active()) b.request.wait();
  }
}

template <class T>
double local_sum_squares(ExecSpace const& exec, layout::StageParams const& params, View1<T const> gradients,
                         layout::PerAxis const& sizes, layout::PerAxis const& here, bool is_first_stage) {
  // Neighbours that count, and are cut alike, are one range: the padding between them is zero.
  auto const& items = params.items();
  auto const counts = [&](layout::LocalParam const& item) {
    return here.zero(item.spec->repeated_axes()) && !(item.spec->tied && !is_first_stage);
  };
  double sum = 0.0;
  for (std::size_t i = 0; i < items.size();) {
    std::size_t j = i;
    auto const axes = items[i].spec->gradient_axes();
    while (j < items.size() && counts(items[j]) && items[j].spec->gradient_axes() == axes) ++j;
    if (j > i) {
      std::int64_t const first = items[i].offset, size = items[j - 1].offset + items[j - 1].size() - first;
      std::int64_t const parts = sizes.product(axes), part = here.place(axes, sizes);
      auto const range =
          Kokkos::pair<std::int64_t, std::int64_t>(first + size * part / parts, first + size * (part + 1) / parts);
      sum += kernels::sum_squares<T>(exec, View1<T const>(Kokkos::subview(gradients, range)));
    }
    i = std::max(j, i + 1);
  }
  return sum;
}

#define P3D_INSTANTIATE(T)                                                                           \
  template class GradientReducer<T>;                                                                 \
  template double local_sum_squares<T>(ExecSpace const&, layout::StageParams const&, View1<T const>, \
                                       layout::PerAxis const&, layout::PerAxis const&, bool);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#if P3D_16BIT
P3D_INSTANTIATE(device::bfloat16)
#endif
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
