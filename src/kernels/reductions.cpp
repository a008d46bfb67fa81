// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "block_sum.hpp"
#include "column_sum.hpp"

namespace p3d::kernels {

View1<double> sum_blocks() {
  static device::Owned1<double> storage;
  if (storage.extent(0) == 0) {
    storage = device::Owned1<double>("p3d::kernels::sum_blocks", max_sum_blocks);
    Kokkos::push_finalize_hook([] { storage = {}; });
  }
  return storage;
}

View1<double> column_workspace() {
  static device::Owned1<double> storage;
  if (storage.extent(0) == 0) {
    storage = device::Owned1<double>("p3d::kernels::column_workspace", column_workspace_size);
    Kokkos::push_finalize_hook([] { storage = {}; });
  }
  return storage;
}

template <class S>
double sum_squares(ExecSpace const& exec, View1<S const> x) {
  S const* const data = x.data();
  return block_sum(
      "p3d::kernels::sum_squares", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        double const v = static_cast<double>(data[i]);
        return v * v;
      });
}

template <class S>
std::int64_t count_not_finite(ExecSpace const& exec, View1<S const> x) {
  // x - x is 0 for finite x and NaN otherwise. The count is exact in double up to 2^53.
  S const* const data = x.data();
  double const count = block_sum(
      "p3d::kernels::count_not_finite", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        Acc<S> const v = data[i];
        return v - v == Acc<S>(0) ? 0.0 : 1.0;
      });
  return static_cast<std::int64_t>(count);
}

#define P3D_INSTANTIATE(S)                                          \
  template double sum_squares<S>(ExecSpace const&, View1<S const>); \
  template std::int64_t count_not_finite<S>(ExecSpace const&, View1<S const>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
