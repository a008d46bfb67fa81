// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/elementwise.hpp>

#include "wide.hpp"

namespace p3d::kernels {

template <class S>
void fill_with_bias(ExecSpace const& exec, View2<S> y, View1<S const> bias) {
  for_chunks<wide<S>>(
      "p3d::kernels::fill_with_bias", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        auto const b = read<wide<S>>(&bias(c), n);
        auto out = write<wide<S>>(&y(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], b[i]);
        out.store();
      });
}

template <class S, class G>
void bias_backward(ExecSpace const& exec, View2<S const> dy, Given<View1<G>> dbias) {
  ColumnSums<S, G> sums;
  sums.add(dy, dbias);
  sums.finish(exec);
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
