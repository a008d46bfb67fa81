// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over all elements that do not depend on the number of threads: fixed blocks, added in order.

#include "launch.hpp"

namespace p3d::kernels {

/// The most blocks that a sum is cut into. It is fixed, so that the order of additions depends on the sizes alone.
inline constexpr std::int64_t max_sum_blocks = 1024;

/// The workspace of partial sums: max_sum_blocks doubles, allocated on first use and kept until Kokkos ends.
View1<double> sum_blocks();

/// The number of blocks that n > 0 elements are cut into: 4096 elements each, or more where there would be too many.
inline std::int64_t sum_blocks_of(std::int64_t n) {
  constexpr std::int64_t smallest = 4096;
  std::int64_t const wanted = (n + smallest - 1) / smallest;
  return wanted < max_sum_blocks ? wanted : max_sum_blocks;
}

/// The sum of n numbers: on the host one after the other, on devices by the whole team.
KOKKOS_INLINE_FUNCTION double ordered_sum(Alone const&, std::int64_t n, double const* x) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}
template <class Team>
KOKKOS_INLINE_FUNCTION double ordered_sum(Team const& team, std::int64_t n, double const* x) {
  return sum_of<double>(team, n, [=](std::int64_t i) { return x[i]; });
}

/// Writes the sums of blocks of f(i), i in [0, n), n > 0, to sum_blocks() and returns the number of blocks. f returns
/// double.
template <class F>
std::int64_t sum_by_block(std::string const& label, ExecSpace const& exec, std::int64_t n, F const& f) {
  std::int64_t const blocks = sum_blocks_of(n);
  std::int64_t const size = (n + blocks - 1) / blocks;
  View1<double> const parts = sum_blocks();
  for_rows(
      label, exec, blocks, KOKKOS_LAMBDA(RowTeam const& team, std::int64_t block) {
        std::int64_t const begin = block * size;
        std::int64_t const left = n - begin, count = left < 0 ? 0 : (left < size ? left : size);
        double const part = sum_of<double>(team, count, [=](std::int64_t i) { return f(begin + i); });
        once(team, [&] { parts(block) = part; });
      });
  return blocks;
}

/// sum(0) += the sum of f(i), i in [0, n), in double. The host does not wait for it.
template <class F>
void add_block_sum(std::string const& label, ExecSpace const& exec, std::int64_t n, F const& f, View1<double> sum) {
  if (n == 0) return;
  std::int64_t const blocks = sum_by_block(label, exec, n, f);
  View1<double> const parts = sum_blocks();
  for_rows(
      "p3d::kernels::add_blocks", exec, 1, KOKKOS_LAMBDA(RowTeam const& team, std::int64_t) {
        double const whole = ordered_sum(team, blocks, parts.data());
        once(team, [&] { sum(0) += whole; });
      });
}

/// The sum of f(i), i in [0, n), in double. The host waits for it.
template <class F>
double block_sum(std::string const& label, ExecSpace const& exec, std::int64_t n, F const& f) {
  if (n == 0) return 0.0;
  std::int64_t const blocks = sum_by_block(label, exec, n, f);
  View1<double> const parts = sum_blocks();
  double sum = 0;
  device::launch_reduce(
      "p3d::kernels::add_blocks", FlatRange(exec, 0, 1),
      KOKKOS_LAMBDA(std::int64_t, double& s) {
        for (std::int64_t block = 0; block < blocks; ++block) s += parts(block);
      },
      sum);
  device::fence(exec, "p3d::kernels::block_sum");
  return sum;
}

}  // namespace p3d::kernels
