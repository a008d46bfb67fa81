// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "block_sum.hpp"

namespace p3d::kernels {

View1<double> sum_blocks() {
  static device::Owned1<double> storage;
  if (storage.extent(0) == 0) {
    storage = device::Owned1<double>("p3d::kernels::sum_blocks", max_sum_blocks);
    Kokkos::push_finalize_hook([] { storage = {}; });
  }
  return storage;
}

template <class T>
double sum_squares(ExecSpace const& exec, View1<T const> x) {
  T const* const data = x.data();
  return block_sum(
      "p3d::kernels::sum_squares", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        double const v = data[i];
        return v * v;
      });
}

template <class T>
std::int64_t count_not_finite(ExecSpace const& exec, View1<T const> x) {
  // x - x is 0 for finite x and NaN otherwise. The count is exact in double up to 2^53.
  T const* const data = x.data();
  double const count = block_sum(
      "p3d::kernels::count_not_finite", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        T const v = data[i];
        return v - v == T(0) ? 0.0 : 1.0;
      });
  return static_cast<std::int64_t>(count);
}

#define P3D_INSTANTIATE(T)                                          \
  template double sum_squares<T>(ExecSpace const&, View1<T const>); \
  template std::int64_t count_not_finite<T>(ExecSpace const&, View1<T const>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
