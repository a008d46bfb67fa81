// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "column_sum.hpp"

namespace p3d::kernels {

template <class S>
void fill_with_bias(ExecSpace const& exec, View2<S> y, View1<S const> bias) {
  for_chunks<element_width>(
      "p3d::kernels::fill_with_bias", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        S* const out = &y(r, c);
        S const* const b = &bias(c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) put(out[i], b[i]);
      });
}

template <class S, class G>
void bias_backward(ExecSpace const& exec, View2<S const> dy, Given<View1<G>> dbias) {
  if (dbias.extent(0) == 0) return;
  auto const rows = static_cast<std::int64_t>(dy.extent(0));
  if constexpr (!on_host) {
    sum_columns<1>(
        "p3d::kernels::bias_backward", exec, rows, static_cast<std::int64_t>(dy.extent(1)),
        KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, ColumnSums<1> & s) { s.sum[0] += dy(r, c); },
        KOKKOS_LAMBDA(std::int64_t c, ColumnSums<1> const& s) { dbias(c) = static_cast<G>(dbias(c) + s.sum[0]); });
    return;
  }
  for_chunks<column_width>(
      "p3d::kernels::bias_backward", exec, 1, dy.extent(1), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        Long sum[column_width] = {};
        for (std::int64_t r = 0; r < rows; ++r) {
          S const* const x = &dy(r, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) sum[i] += x[i];
        }
        for (int i = 0; i < n; ++i) dbias(c + i) = static_cast<G>(dbias(c + i) + sum[i]);
      });
}

#define P3D_INSTANTIATE(S)                                                     \
  template void fill_with_bias<S>(ExecSpace const&, View2<S>, View1<S const>); \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G) template void bias_backward<S, G>(ExecSpace const&, View2<S const>, View1<G>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE_GRADIENT
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
