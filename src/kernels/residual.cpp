// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/elementwise.hpp>

#include "keep.hpp"
#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// The stream and the first element's number of a chunk at a hidden site.
struct DropoutIndex {
  std::uint64_t stream, first;
};
KOKKOS_INLINE_FUNCTION DropoutIndex dropout_index(TokenRows const& rows, std::int64_t row, std::int64_t col,
                                                  std::int64_t hidden) {
  return {static_cast<std::uint64_t>(rows.first_sample + row / rows.seq_len),
          static_cast<std::uint64_t>((row % rows.seq_len) * hidden + col)};
}

}  // namespace

template <class T>
void residual_forward(ExecSpace const& exec, TokenRows rows, View2<T const> x, View2<T const> branch,
                      View1<T const> bias, Dropout const& dropout, View2<T> y) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  bool const has_bias = bias.extent(0) != 0;
  Dropout const drop = dropout;  // captured by value
  for_chunks<element_width>(
      "p3d::kernels::residual_forward", exec, x.extent(0), hidden,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T value[element_width];
        T const* const a = &x(r, c);
        T const* const b = &branch(r, c);
        T* const out = &y(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) value[i] = b[i];
        if (has_bias) {
          T const* const add = &bias(c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) value[i] += add[i];
        }
        if (drop.active()) {
          T keep[element_width];
          DropoutIndex const at = dropout_index(rows, r, c, hidden);
          keep_factors(drop, at.stream, at.first, n, keep);
          P3D_SIMD
          for (int i = 0; i < n; ++i) value[i] *= keep[i];
        }
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] = a[i] + value[i];
      });
}

template <class T>
void residual_backward(ExecSpace const& exec, TokenRows rows, View2<T const> dy, Dropout const& dropout,
                       View2<T> dbranch) {
  if (!dropout.active() && dy.data() == dbranch.data()) return;
  auto const hidden = static_cast<std::int64_t>(dy.extent(1));
  Dropout const drop = dropout;
  for_chunks<element_width>(
      "p3d::kernels::residual_backward", exec, dy.extent(0), hidden,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T keep[element_width];
        for (int i = 0; i < n; ++i) keep[i] = T(1);
        if (drop.active()) {
          DropoutIndex const at = dropout_index(rows, r, c, hidden);
          keep_factors(drop, at.stream, at.first, n, keep);
        }
        T const* const in = &dy(r, c);
        T* const out = &dbranch(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] = keep[i] * in[i];
      });
}

template <class T>
void dropout_in_place(ExecSpace const& exec, TokenRows rows, Dropout const& dropout, View2<T> x) {
  if (dropout.active()) residual_backward<T>(exec, rows, x, dropout, x);
}

template <class T>
void sum_into_both(ExecSpace const& exec, View2<T> a, View2<T> b) {
  P3D_REQUIRE(a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1), "both have one shape");
  for_chunks<element_width>(
      "p3d::kernels::sum_into_both", exec, static_cast<std::int64_t>(a.extent(0)),
      static_cast<std::int64_t>(a.extent(1)), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T* const x = &a(r, c);
        T* const y = &b(r, c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) x[i] = y[i] = x[i] + y[i];
      });
}

#define P3D_INSTANTIATE(T)                                                                                       \
  template void residual_forward<T>(ExecSpace const&, TokenRows, View2<T const>, View2<T const>, View1<T const>, \
                                    Dropout const&, View2<T>);                                                   \
  template void residual_backward<T>(ExecSpace const&, TokenRows, View2<T const>, Dropout const&, View2<T>);     \
  template void dropout_in_place<T>(ExecSpace const&, TokenRows, Dropout const&, View2<T>);                      \
  template void sum_into_both<T>(ExecSpace const&, View2<T>, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
