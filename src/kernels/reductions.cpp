// SPDX-License-Identifier: Apache-2.0
// Reductions over vectors: sums of squares by segments, a count of NaN and infinite elements, and the workspaces of
// sums. Partial sums belong to fixed blocks, so results do not depend on the number of threads.
#include <p3d/kernels/elementwise.hpp>

#include <p3d/device/guard.hpp>

#include <utility>

#include "block_sum.hpp"
#include "column_sum.hpp"
#include "segment_table.hpp"

namespace p3d::kernels {

View1<double> sum_blocks() {
  static device::Owned1<double> storage;
  if (storage.extent(0) == 0) {
    storage = device::Owned1<double>("p3d::kernels::sum_blocks", max_sum_blocks);
    Kokkos::push_finalize_hook([] { storage = {}; });
  }
  return storage;
}

View1<double> column_workspace() {
  static device::Owned1<double> storage;
  if (storage.extent(0) == 0) {
    storage = device::Owned1<double>("p3d::kernels::column_workspace", column_workspace_size);
    Kokkos::push_finalize_hook([] { storage = {}; });
  }
  P3D_REQUIRE(!column_sums_wait, "the workspace of sums over rows is free: ColumnSums::finish comes first");
  return storage;
}

void take_workspaces() {
  sum_blocks();
  column_workspace();
}

std::vector<double> take_sums(ExecSpace const& exec, View1<double> sums) {
  std::vector<double> out(sums.extent(0), 0.0);
  if constexpr (device::host_reaches_views) {
    device::fence(exec, "p3d::kernels::take_sums");
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::exchange(sums(i), 0.0);
  } else {
    // Into memory that is there: no step allocates.
    Kokkos::View<double*, Kokkos::LayoutRight, device::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const host(
        out.data(), out.size());
    Kokkos::deep_copy(exec, host, sums);
    fill<double>(exec, sums, 0.0);
    device::fence(exec, "p3d::kernels::take_sums");
  }
  return out;
}

namespace {

/// SegmentTable's value for sums: a segment needs none.
struct Nothing {};
using Segments = SegmentTable<Nothing>;
static_assert(Segments::most * (max_sum_blocks + 1) <= column_workspace_size);

template <class S>
void add_sum_squares(ExecSpace const& exec, S const* data, Segments const& table, View1<double> sum) {
  View1<double> const parts = column_workspace();
  for_rows(
      "p3d::kernels::add_sum_squares", exec, table.blocks(), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t block) {
        int const at = table.of_block(block);
        std::int64_t const begin = table.begin_of(at, block), left = table.end[at] - begin;
        std::int64_t const n = left < 0 ? 0 : (left < table.size[at] ? left : table.size[at]);
        S const* const x = data + begin;
        double const part = sum_of<double>(team, n, [=](std::int64_t i) {
          double const v = static_cast<double>(x[i]);
          return v * v;
        });
        once(team, [&] { parts(block) = part; });
      });
  // Each segment's blocks are added by one team, then one thread adds the segments: one thread for all blocks would
  // take milliseconds of a GPU.
  std::int64_t const sums = table.blocks();
  for_rows(
      "p3d::kernels::add_segments", exec, table.count, KOKKOS_LAMBDA(RowTeam const& team, std::int64_t at) {
        std::int64_t const first = table.first_block[at];
        double const one = ordered_sum(team, table.first_block[at + 1] - first, parts.data() + first);
        once(team, [&] { parts(sums + at) = one; });
      });
  int const count = table.count;
  launch_kernel(
      "p3d::kernels::add_sums", FlatRange(exec, 0, 1), KOKKOS_LAMBDA(std::int64_t) {
        for (int at = 0; at < count; ++at) sum(0) += parts(sums + at);
      });
}

}  // namespace

template <class S>
void add_sum_squares(ExecSpace const& exec, View1<S const> x, std::vector<Segment> const& segments, View1<double> sum) {
  Segments table;
  table.clear();
  for (auto const& segment : segments) {
    P3D_REQUIRE(segment.begin >= 0 && segment.begin + segment.count <= static_cast<std::int64_t>(x.extent(0)),
                "a segment lies in its vector");
    if (segment.count == 0) continue;
    std::int64_t const blocks = sum_blocks_of(segment.count);
    table.add(segment.begin, segment.count, (segment.count + blocks - 1) / blocks, {});
    if (!table.full()) continue;
    add_sum_squares<S>(exec, x.data(), table, sum);
    table.clear();
  }
  if (table.count > 0) add_sum_squares<S>(exec, x.data(), table, sum);
}

template <class S>
std::int64_t count_not_finite(ExecSpace const& exec, View1<S const> x, double limit) {
  // No comparison holds for a NaN. The count is exact in double up to 2^53.
  S const* const data = x.data();
  auto const most = static_cast<Acc<S>>(limit);
  double const count = block_sum(
      "p3d::kernels::count_not_finite", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        Acc<S> const v = data[i];
        return v < most && v > -most ? 0.0 : 1.0;
      });
  return static_cast<std::int64_t>(count);
}

#define P3D_INSTANTIATE(S)                                                                                        \
  template void add_sum_squares<S>(ExecSpace const&, View1<S const>, std::vector<Segment> const&, View1<double>); \
  template std::int64_t count_not_finite<S>(ExecSpace const&, View1<S const>, double);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
