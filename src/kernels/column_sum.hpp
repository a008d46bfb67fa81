// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the rows of a matrix. The host walks chunks of columns down all rows. On devices a column to a thread would
// leave most threads idle: there fixed blocks of rows are summed first, then 8 groups of blocks, then the groups.
// Neither way depends on the number of threads or teams.

#include <p3d/base/memory_sizes.hpp>

#include "launch.hpp"

namespace p3d::kernels {

/// The size of the workspace in doubles.
inline constexpr std::int64_t column_workspace_size = base::column_workspace_size(!on_host);
/// The workspace of partial sums, allocated on first use or by take_workspaces(), and kept until Kokkos ends. It serves
/// one execution space at a time, and only one ColumnSums while that has partial sums in it.
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

/// to(key, c) += from(r, c) for every column c of the rows r with key(r) >= 0. One thread takes the rows of one key one
/// after the other, in order; rows of other keys run at the same time. Returns false, with nothing done, where the rows
/// are too many to sort.
///
/// Rows are sorted by counting for each row those that come before it: rows^2 comparisons, by a team for each row
/// (8,192 tokens: 163 microseconds on an H200). So a thread has a list of its rows, and reads several at a time.
template <class Key, class From, class To>
bool add_by_key(std::string const& label, ExecSpace const& exec, std::int64_t rows, std::int64_t cols, Key const& key,
                From const& from, To const& to) {
  if (rows == 0 || cols == 0) return true;
  constexpr int bits = 18;  // of each of three counts in one sum; more rows take a GPU 0.2 s and more to sort
  if (rows >= std::int64_t(1) << bits) return false;
  static_assert(3 * sizeof(int) << bits <= column_workspace_size * sizeof(double));
  // sorted[] has the rows in order. The rows of row r's key are the first[r] ones from sorted[begin[r]] on if r is the
  // first of them, else first[r] is 0.
  auto* const sorted = reinterpret_cast<int*>(column_workspace().data());
  auto *const first = sorted + rows, *const begin = first + rows;
  for_rows(
      "p3d::kernels::order_by_key", exec, rows,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t row) {
        auto const mine = key(row);
        // Rows of lower keys, rows of this key before this one, and all rows of this key.
        auto const counts = sum_of<std::int64_t>(team, rows, [=](std::int64_t other) {
          auto const its = key(other);
          std::int64_t const lower = its >= 0 && its < mine ? 1 : 0, same = its == mine ? 1 : 0;
          return lower + (other < row ? same << bits : 0) + (same << 2 * bits);
        });
        once(team, [&] {
          constexpr std::int64_t mask = (std::int64_t(1) << bits) - 1;
          auto const lower = static_cast<int>(counts & mask), before = static_cast<int>(counts >> bits & mask);
          first[row] = mine >= 0 && before == 0 ? static_cast<int>(counts >> 2 * bits) : 0;
          begin[row] = lower;
          if (mine >= 0) sorted[lower + before] = static_cast<int>(row);
        });
      },
      rows);
  launch_kernel(
      label, FlatRange(exec, 0, rows * cols), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const row = i / cols, c = i - row * cols;
        int const count = first[row];
        if (count == 0) return;
        int const* const mine = sorted + begin[row];
        auto& place = to(key(row), c);
        auto sum = place;
        using Sum = decltype(sum);
        constexpr int step = 8;  // reads that are in flight together
        int j = 0;
        for (; j + step <= count; j += step) {
          decltype(from(row, c)) x[step];
          P3D_UNROLL
          for (int l = 0; l < step; ++l) x[l] = from(mine[j + l], c);
          P3D_UNROLL
          for (int l = 0; l < step; ++l) sum = static_cast<Sum>(sum + x[l]);
        }
        for (; j < count; ++j) sum = static_cast<Sum>(sum + from(mine[j], c));
        place = sum;
      });
  return true;
}

}  // namespace p3d::kernels
