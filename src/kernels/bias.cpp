// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "launch.hpp"

namespace p3d::kernels {

template <class T>
void fill_with_bias(ExecSpace const& exec, View2<T> y, View1<T const> bias) {
  for_chunks<element_width>(
      "p3d::kernels::fill_with_bias", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T* const out = &y(r, c);
        T const* const b = &bias(c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] = b[i];
      });
}

template <class T>
void bias_backward(ExecSpace const& exec, View2<T const> dy, View1<T> dbias) {
  if (dbias.extent(0) == 0) return;
  auto const rows = static_cast<std::int64_t>(dy.extent(0));
  for_chunks<column_width>(
      "p3d::kernels::bias_backward", exec, 1, dy.extent(1), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        Long<T> sum[column_width] = {};
        for (std::int64_t r = 0; r < rows; ++r) {
          T const* const x = &dy(r, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) sum[i] += x[i];
        }
        for (int i = 0; i < n; ++i) dbias(c + i) = static_cast<T>(dbias(c + i) + sum[i]);
      });
}

#define P3D_INSTANTIATE(T)                                                     \
  template void fill_with_bias<T>(ExecSpace const&, View2<T>, View1<T const>); \
  template void bias_backward<T>(ExecSpace const&, View2<T const>, View1<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
