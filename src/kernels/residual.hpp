// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual sums and their dropout, for some neighbouring columns of a row.

#include <p3d/kernels/norm.hpp>

#include "keep.hpp"
#include "launch.hpp"

namespace p3d::kernels {

/// factor[i] = dropout's, of columns c + i of a row at a hidden site.
template <class A>
KOKKOS_INLINE_FUNCTION void hidden_keep(TokenRows const& rows, Dropout const& dropout, std::int64_t hidden,
                                        std::int64_t r, std::int64_t c, int n, A* factor) {
  keep_factors(dropout, static_cast<std::uint64_t>(rows.first_sample + (rows.first_row + r) / rows.seq_len),
               static_cast<std::uint64_t>(rows.index(r) * hidden + c), n, factor);
}

/// out[i] = the residual sum in columns c + i, n <= element_width, of row r.
template <class S>
KOKKOS_INLINE_FUNCTION void residual_chunk(ResidualSum<S> const& sum, std::int64_t hidden, std::int64_t r,
                                           std::int64_t c, int n, S* out) {
  using A = Acc<S>;
  A value[element_width];
  S const* const a = &sum.x(r, c);
  S const* const b = &sum.branch(r, c);
  P3D_SIMD
  for (int i = 0; i < n; ++i) value[i] = b[i];
  if (sum.bias.extent(0) != 0) {
    S const* const add = &sum.bias(c);
    P3D_SIMD
    for (int i = 0; i < n; ++i) value[i] += add[i];
  }
  if (sum.dropout.active()) {
    A keep[element_width];
    hidden_keep(sum.rows, sum.dropout, hidden, r, c, n, keep);
    P3D_SIMD
    for (int i = 0; i < n; ++i) value[i] *= keep[i];
  }
  P3D_SIMD
  for (int i = 0; i < n; ++i) put(out[i], a[i] + value[i]);
}

/// out[i] = in[i] times its dropout factor, for columns c + i, n <= element_width, of row r.
template <class S>
KOKKOS_INLINE_FUNCTION void dropout_chunk(TokenRows const& rows, Dropout const& dropout, std::int64_t hidden,
                                          std::int64_t r, std::int64_t c, int n, S const* in, S* out) {
  Acc<S> keep[element_width];
  for (int i = 0; i < n; ++i) keep[i] = Acc<S>(1);
  if (dropout.active()) hidden_keep(rows, dropout, hidden, r, c, n, keep);
  P3D_SIMD
  for (int i = 0; i < n; ++i) put(out[i], keep[i] * in[i]);
}

}  // namespace p3d::kernels
