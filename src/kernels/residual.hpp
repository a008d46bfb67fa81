// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual sums and their dropout, for a chunk of neighbouring columns of one row.

#include <p3d/kernels/norm.hpp>

#include "keep.hpp"
#include "wide.hpp"

namespace p3d::kernels {

/// The place of a row in the dropout of a hidden site: its sample, and the number of its first element within that
/// sample.
struct HiddenRow {
  std::uint64_t sample = 0, first = 0;
};
/// The dropout place of row r; zeros without dropout. It is computed once for a row. Divisions of 64 bits are long on
/// GPUs, so 32 bits are used where they suffice.
KOKKOS_INLINE_FUNCTION HiddenRow hidden_row(TokenRows const& rows, Dropout const& dropout, std::int64_t hidden,
                                            std::int64_t r) {
  if (!dropout.active()) return {};
  std::int64_t const row = rows.first_row + r;
  bool const fits = ((row | rows.seq_len) >> 32) == 0;
  std::int64_t const sample =
      fits ? static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(rows.seq_len) : row / rows.seq_len;
  std::int64_t const place = row - sample * rows.seq_len;
  std::int64_t const index = rows.tokens.size() > 0 ? rows.tokens.at(place) : place;
  return {static_cast<std::uint64_t>(rows.first_sample + sample), static_cast<std::uint64_t>(index * hidden)};
}

/// factor[i] = the dropout factor of column c + i of a row at a hidden site, i in [0, n).
template <class A>
KOKKOS_INLINE_FUNCTION void hidden_keep(HiddenRow const& row, Dropout const& dropout, std::int64_t c, int n,
                                        A* factor) {
  if (!dropout.active()) {
    for (int i = 0; i < n; ++i) factor[i] = static_cast<A>(dropout.scale);
    return;
  }
  keep_factors(dropout, row.sample, row.first + static_cast<std::uint64_t>(c), n, factor);
}

/// out[i] = the residual sum in column c + i of row r, n <= wide<S> columns; `row` is the row's place in the dropout.
template <class S>
KOKKOS_INLINE_FUNCTION void residual_chunk(ResidualSum<S> const& sum, HiddenRow const& row, std::int64_t r,
                                           std::int64_t c, int n, S* out) {
  using A = Acc<S>;
  constexpr int W = wide<S>;
  A value[W];
  bool const has_x = sum.x.extent(0) != 0;
  auto const b = read<W>(&sum.branch(r, c), n);
  P3D_SIMD
  for (int i = 0; i < lanes<W>(n); ++i) value[i] = b[i];
  if (sum.bias.extent(0) != 0) {
    auto const add = read<W>(&sum.bias(c), n);
    P3D_SIMD
    for (int i = 0; i < lanes<W>(n); ++i) value[i] += add[i];
  }
  if (sum.dropout.changes()) {
    A keep[W];
    hidden_keep(row, sum.dropout, c, lanes<W>(n), keep);
    P3D_SIMD
    for (int i = 0; i < lanes<W>(n); ++i) value[i] *= keep[i];
  }
  if (has_x) {
    auto const a = read<W>(&sum.x(r, c), n);
    P3D_SIMD
    for (int i = 0; i < lanes<W>(n); ++i) value[i] = a[i] + value[i];
  }
  auto to = write<W>(out, n);
  P3D_SIMD
  for (int i = 0; i < lanes<W>(n); ++i) put(to[i], value[i]);
  to.store();
}

/// out[i] = in[i] times its dropout factor, for columns [c, c + n) of a row, n <= wide<S>.
template <class S>
KOKKOS_INLINE_FUNCTION void dropout_chunk(HiddenRow const& row, Dropout const& dropout, std::int64_t c, int n,
                                          S const* in, S* out) {
  constexpr int W = wide<S>;
  Acc<S> keep[W];
  for (int i = 0; i < lanes<W>(n); ++i) keep[i] = Acc<S>(1);
  if (dropout.changes()) hidden_keep(row, dropout, c, lanes<W>(n), keep);
  auto const from = read<W>(in, n);
  auto to = write<W>(out, n);
  P3D_SIMD
  for (int i = 0; i < lanes<W>(n); ++i) put(to[i], keep[i] * from[i]);
  to.store();
}

}  // namespace p3d::kernels
