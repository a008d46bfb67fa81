// SPDX-License-Identifier: Apache-2.0
// Residual sums with dropout, and sums of two arrays.
#include <p3d/kernels/elementwise.hpp>

#include "residual.hpp"

namespace p3d::kernels {

template <class S>
void residual_forward(ExecSpace const& exec, TokenRows rows, View2<S const> x, View2<S const> branch,
                      View1<S const> bias, Dropout const& dropout, View2<S> y) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  ResidualSum<S> const sum{rows, x, branch, bias, dropout};
  for_chunks<wide<S>>(
      "p3d::kernels::residual_forward", exec, x.extent(0), hidden,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        residual_chunk(sum, hidden_row(sum.rows, sum.dropout, hidden, r), r, c, n, &y(r, c));
      });
}

template <class S>
void residual_backward(ExecSpace const& exec, TokenRows rows, View2<S const> dy, Dropout const& dropout,
                       View2<S> dbranch) {
  if (!dropout.changes() && dy.data() == dbranch.data()) return;
  auto const hidden = static_cast<std::int64_t>(dy.extent(1));
  Dropout const drop = dropout;  // captured by value
  for_chunks<wide<S>>(
      "p3d::kernels::residual_backward", exec, dy.extent(0), hidden,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        dropout_chunk(hidden_row(rows, drop, hidden, r), drop, c, n, &dy(r, c), &dbranch(r, c));
      });
}

template <class S>
void dropout_in_place(ExecSpace const& exec, TokenRows rows, Dropout const& dropout, View2<S> x) {
  if (dropout.changes()) residual_backward<S>(exec, rows, x, dropout, x);
}

template <class S>
void multiply(ExecSpace const& exec, double factor, View2<S const> x, View2<S> y) {
  Dropout all;
  all.scale = factor;
  residual_backward<S>(exec, {}, x, all, y);
}

template <class S>
void sum_into_both(ExecSpace const& exec, View2<S> a, View2<S> b) {
  P3D_REQUIRE(a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1), "both have one shape");
  for_chunks<wide<S>>(
      "p3d::kernels::sum_into_both", exec, static_cast<std::int64_t>(a.extent(0)),
      static_cast<std::int64_t>(a.extent(1)), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        auto const x = read<wide<S>>(&a(r, c), n), y = read<wide<S>>(&b(r, c), n);
        auto to_a = write<wide<S>>(&a(r, c), n), to_b = write<wide<S>>(&b(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) {
          Acc<S> const sum = x[i] + y[i];
          put(to_a[i], sum);
          put(to_b[i], sum);
        }
        to_a.store();
        to_b.store();
      });
}

template <class S>
void add(ExecSpace const& exec, View1<S const> x, View1<S> y) {
  P3D_REQUIRE(x.extent(0) == y.extent(0), "both have one length");
  for_vector<wide_flat<S>>(
      "p3d::kernels::add", exec, y.extent(0), KOKKOS_LAMBDA(std::int64_t c, int n) {
        S* const place = &y(c);
        auto const in = read<wide_flat<S>>(&x(c), n), old = read<wide_flat<S>>(place, n);
        auto out = write<wide_flat<S>>(place, n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide_flat<S>>(n); ++i)
          put(out[i], static_cast<Acc<S>>(old[i]) + static_cast<Acc<S>>(in[i]));
        out.store();
      });
}

#define P3D_INSTANTIATE(S)                                                                                       \
  template void residual_forward<S>(ExecSpace const&, TokenRows, View2<S const>, View2<S const>, View1<S const>, \
                                    Dropout const&, View2<S>);                                                   \
  template void residual_backward<S>(ExecSpace const&, TokenRows, View2<S const>, Dropout const&, View2<S>);     \
  template void dropout_in_place<S>(ExecSpace const&, TokenRows, Dropout const&, View2<S>);                      \
  template void multiply<S>(ExecSpace const&, double, View2<S const>, View2<S>);                                 \
  template void sum_into_both<S>(ExecSpace const&, View2<S>, View2<S>);                                          \
  template void add<S>(ExecSpace const&, View1<S const>, View1<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
