// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the rows of a matrix. The host walks chunks of columns down all rows. On devices a column to a thread would
// leave most threads idle: there fixed blocks of rows are summed first, then 8 groups of blocks, then the groups.
// Neither way depends on the number of threads or teams.

#include "launch.hpp"

namespace p3d::kernels {

/// The size of the workspace in doubles: 8 MiB, on devices 64 MiB.
inline constexpr std::int64_t column_workspace_size = std::int64_t(1) << (on_host ? 20 : 23);
/// The workspace of partial sums, allocated on first use and kept until Kokkos ends. It serves one execution space at a
/// time, and only one ColumnSums while that has partial sums in it.
View1<double> column_workspace();
/// True while a ColumnSums has partial sums in the workspace; column_workspace() throws then.
inline bool column_sums_wait = false;

/// The rows of a block of a matrix: at least `least`, so many that there are at most 256 blocks, and so many that the
/// partial sums of the blocks, `width` doubles each, fit into `room` doubles.
inline std::int64_t rows_of_block(std::int64_t rows, std::int64_t width, std::int64_t room = column_workspace_size,
                                  std::int64_t least = 32) {
  constexpr std::int64_t most = 256;
  std::int64_t const fit = room / width;
  std::int64_t const blocks = fit < most ? (fit > 1 ? fit : 1) : most;
  std::int64_t const size = (rows + blocks - 1) / blocks;
  return size < least ? least : size;
}

/// Calls add(r, c) for every column c of the rows r with key(r) >= 0. One thread takes the rows of one key one after
/// the other, in order; rows of other keys run at the same time. Returns false, with nothing done, where the rows are
/// too many for the workspace.
template <class Key, class Add>
bool add_by_key(std::string const& label, ExecSpace const& exec, std::int64_t rows, std::int64_t cols, Key const& key,
                Add const& add) {
  if (rows == 0 || cols == 0) return true;
  if (rows > column_workspace_size) return false;
  // chain[2 r] says whether row r is the first of its key; chain[2 r + 1] is the next row of that key, or -1.
  auto* const chain = reinterpret_cast<int*>(column_workspace().data());
  launch_kernel(
      "p3d::kernels::order_by_key", FlatRange(exec, 0, rows), KOKKOS_LAMBDA(std::int64_t r) {
        auto const mine = key(r);
        std::int64_t before = r - 1, after = r + 1;
        while (before >= 0 && key(before) != mine) --before;
        while (after < rows && key(after) != mine) ++after;
        chain[2 * r] = mine >= 0 && before < 0 ? 1 : 0;
        chain[2 * r + 1] = after < rows ? static_cast<int>(after) : -1;
      });
  launch_kernel(
      label, FlatRange(exec, 0, rows * cols), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const first = i / cols, c = i - first * cols;
        if (chain[2 * first] == 0) return;
        for (std::int64_t r = first; r >= 0; r = chain[2 * r + 1]) add(r, c);
      });
  return true;
}

}  // namespace p3d::kernels
