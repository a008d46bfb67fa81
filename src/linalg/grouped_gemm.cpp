// SPDX-License-Identifier: Apache-2.0
// GEMMs of experts: the checks of the offsets, and one GEMM for each group.
#include <p3d/linalg/grouped_gemm.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>

namespace p3d::linalg {

namespace {

/// Rows [begin, begin + n) of m, with its row stride.
template <class T>
View2<T> rows_of(View2<T> const& m, std::int64_t begin, std::int64_t n) {
  return Kokkos::subview(m, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + n), Kokkos::ALL);
}

/// Checks the offsets and calls f(first row, rows, first row of the block, rows of the block) for every group.
template <class F>
void each_group(std::span<std::int64_t const> offsets, std::size_t rows, std::size_t stacked, F const& f) {
  P3D_REQUIRE(offsets.size() >= 2 && offsets.front() >= 0 && std::is_sorted(offsets.begin(), offsets.end()) &&
                  offsets.back() <= static_cast<std::int64_t>(rows),
              "the offsets of a grouped GEMM do not fall and lie within the rows");
  std::size_t const groups = offsets.size() - 1;
  P3D_REQUIRE(stacked % groups == 0, "the rows of a stacked matrix are the same number for every group");
  auto const block = static_cast<std::int64_t>(stacked / groups);
  for (std::size_t g = 0; g < groups; ++g)
    f(offsets[g], offsets[g + 1] - offsets[g], static_cast<std::int64_t>(g) * block, block);
}

/// Calls gemm_of(rows of A, block of B, rows of C) for every group that has rows.
template <class Rows, class Weight, class Out, class Gemm>
void by_rows(Rows const& a, Weight const& b, Out const& c, std::span<std::int64_t const> offsets, Gemm const& gemm_of) {
  P3D_REQUIRE(a.extent(0) == c.extent(0), "shapes of a grouped GEMM do not fit");
  each_group(offsets, a.extent(0), b.extent(0),
             [&](std::int64_t begin, std::int64_t n, std::int64_t first, std::int64_t block) {
               if (n > 0) gemm_of(rows_of(a, begin, n), rows_of(b, first, block), rows_of(c, begin, n));
             });
}
/// Calls gemm_of(rows of A, rows of B, block of C) for every group.
template <class Rows, class Out, class Gemm>
void by_blocks(Rows const& a, Rows const& b, Out const& c, std::span<std::int64_t const> offsets, Gemm const& gemm_of) {
  P3D_REQUIRE(a.extent(0) == b.extent(0), "shapes of a grouped GEMM do not fit");
  each_group(offsets, a.extent(0), c.extent(0),
             [&](std::int64_t begin, std::int64_t n, std::int64_t first, std::int64_t block) {
               gemm_of(rows_of(a, begin, n), rows_of(b, begin, n), rows_of(c, first, block));
             });
}

}  // namespace

template <std::floating_point T>
void grouped_gemm(ExecSpace const& exec, Op op_b, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c,
                  std::span<std::int64_t const> offsets) {
  by_rows(a, b, c, offsets,
          [&](View2<T const> x, View2<T const> w, View2<T> y) { gemm<T>(exec, Op::none, op_b, alpha, x, w, beta, y); });
}

template <Float16 S, class C>
void grouped_gemm(ExecSpace const& exec, Op op_b, float alpha, View2<S const> a, View2<S const> b, float beta,
                  View2<C> c, std::span<std::int64_t const> offsets) {
  by_rows(a, b, c, offsets, [&](View2<S const> x, View2<S const> w, View2<C> y) {
    gemm<S, C>(exec, Op::none, op_b, alpha, x, w, beta, y);
  });
}

template <std::floating_point T>
void grouped_gemm_weight(ExecSpace const& exec, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c,
                         std::span<std::int64_t const> offsets) {
  by_blocks(a, b, c, offsets, [&](View2<T const> x, View2<T const> y, View2<T> w) {
    gemm<T>(exec, Op::transpose, Op::none, alpha, x, y, beta, w);
  });
}

template <Float16 S, class C>
void grouped_gemm_weight(ExecSpace const& exec, float alpha, View2<S const> a, View2<S const> b, float beta, View2<C> c,
                         std::span<std::int64_t const> offsets) {
  by_blocks(a, b, c, offsets, [&](View2<S const> x, View2<S const> y, View2<C> w) {
    gemm<S, C>(exec, Op::transpose, Op::none, alpha, x, y, beta, w);
  });
}

#define P3D_INSTANTIATE(T)                                                                               \
  template void grouped_gemm<T>(ExecSpace const&, Op, T, View2<T const>, View2<T const>, T, View2<T>,    \
                                std::span<std::int64_t const>);                                          \
  template void grouped_gemm_weight<T>(ExecSpace const&, T, View2<T const>, View2<T const>, T, View2<T>, \
                                       std::span<std::int64_t const>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(S, C)                                                                                       \
  template void grouped_gemm<S, C>(ExecSpace const&, Op, float, View2<S const>, View2<S const>, float, View2<C>,    \
                                   std::span<std::int64_t const>);                                                  \
  template void grouped_gemm_weight<S, C>(ExecSpace const&, float, View2<S const>, View2<S const>, float, View2<C>, \
                                          std::span<std::int64_t const>);
P3D_INSTANTIATE(device::bfloat16, device::bfloat16)
P3D_INSTANTIATE(device::bfloat16, float)
P3D_INSTANTIATE(device::float16, device::float16)
P3D_INSTANTIATE(device::float16, float)
#undef P3D_INSTANTIATE

}  // namespace p3d::linalg
