// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the rows of a matrix for devices, where a column to a thread would leave most of them idle: fixed blocks of
// rows first, then the blocks in order. Neither depends on the number of threads or teams. The host walks chunks of
// columns down all rows instead (for_chunks<column_width>).

#include "launch.hpp"

namespace p3d::kernels {

/// Doubles of workspace: 8 MiB.
inline constexpr std::int64_t column_workspace_size = std::int64_t(1) << 20;
/// The workspace, allocated on first use and kept until Kokkos ends: for one execution space at a time.
View1<double> column_workspace();

/// Rows of a block: at least 32, and so many that the partial sums of `width` doubles a row fit the workspace.
inline std::int64_t rows_of_block(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t smallest = 32, most = 256;
  std::int64_t const fit = column_workspace_size / width;
  std::int64_t const blocks = fit < most ? (fit > 1 ? fit : 1) : most;
  std::int64_t const size = (rows + blocks - 1) / blocks;
  return size < smallest ? smallest : size;
}

/// Number N of sums that are kept for a column.
template <int N>
struct ColumnSums {
  Long sum[N] = {};
};

/// finish(c, sums of term over all rows) for every column c; term(r, c, sums) adds what row r has.
template <int N, class Term, class Finish>
void sum_columns(std::string const& label, ExecSpace const& exec, std::int64_t rows, std::int64_t cols,
                 Term const& term, Finish const& finish) {
  if (cols == 0) return;
  std::int64_t const size = rows_of_block(rows, cols * N), blocks = (rows + size - 1) / size;
  if (blocks <= 1) {
    Kokkos::parallel_for(
        label, FlatRange(exec, 0, cols), KOKKOS_LAMBDA(std::int64_t c) {
          ColumnSums<N> s;
          for (std::int64_t r = 0; r < rows; ++r) term(r, c, s);
          finish(c, s);
        });
    return;
  }
  double* const parts = column_workspace().data();
  Kokkos::parallel_for(
      label, FlatRange(exec, 0, blocks * cols), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const block = i / cols, c = i - block * cols;
        std::int64_t const end = (block + 1) * size < rows ? (block + 1) * size : rows;
        ColumnSums<N> s;
        for (std::int64_t r = block * size; r < end; ++r) term(r, c, s);
        for (int k = 0; k < N; ++k) parts[(k * blocks + block) * cols + c] = s.sum[k];
      });
  Kokkos::parallel_for(
      "p3d::kernels::add_row_blocks", FlatRange(exec, 0, cols), KOKKOS_LAMBDA(std::int64_t c) {
        ColumnSums<N> s;
        for (int k = 0; k < N; ++k)
          for (std::int64_t block = 0; block < blocks; ++block) s.sum[k] += parts[(k * blocks + block) * cols + c];
        finish(c, s);
      });
}

/// add(r, c) for every column c of the rows r with key(r) >= 0: rows of one key one after the other in order, by one
/// thread; rows of other keys at the same time. False where the rows are too many for the workspace: nothing is done.
template <class Key, class Add>
bool add_by_key(std::string const& label, ExecSpace const& exec, std::int64_t rows, std::int64_t cols, Key const& key,
                Add const& add) {
  if (rows == 0 || cols == 0) return true;
  if (rows > column_workspace_size) return false;
  // Of row r: whether it is the first of its key, and the next row of that key or -1.
  auto* const chain = reinterpret_cast<int*>(column_workspace().data());
  Kokkos::parallel_for(
      "p3d::kernels::order_by_key", FlatRange(exec, 0, rows), KOKKOS_LAMBDA(std::int64_t r) {
        auto const mine = key(r);
        std::int64_t before = r - 1, after = r + 1;
        while (before >= 0 && key(before) != mine) --before;
        while (after < rows && key(after) != mine) ++after;
        chain[2 * r] = mine >= 0 && before < 0 ? 1 : 0;
        chain[2 * r + 1] = after < rows ? static_cast<int>(after) : -1;
      });
  Kokkos::parallel_for(
      label, FlatRange(exec, 0, rows * cols), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const first = i / cols, c = i - first * cols;
        if (chain[2 * first] == 0) return;
        for (std::int64_t r = first; r >= 0; r = chain[2 * r + 1]) add(r, c);
      });
  return true;
}

}  // namespace p3d::kernels
