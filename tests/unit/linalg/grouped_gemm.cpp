// SPDX-License-Identifier: Apache-2.0
// GEMMs of groups of rows against loops in double: every form, strided rows, empty groups, rows outside the groups.

#include <p3d/base/random.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/grouped_gemm.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::bfloat16;
using device::ExecSpace;
using device::float16;
using device::Owned2;
using device::View2;
using linalg::Op;
using Offsets = std::vector<std::int64_t>;

/// Columns [2, 2 + cols) of a wider matrix.
template <class T>
struct WideMatrix {
  Owned2<T> wide;
  View2<T> view;
  WideMatrix(std::string_view name, std::int64_t rows, std::int64_t cols)
      : wide("p3d::test::matrix", rows, cols + 5), view(device::columns(View2<T>(wide), 2, cols + 2)) {
    auto const h = device::host_mirror(wide);
    auto const key = base::random_key(5, name);
    for (std::size_t i = 0; i < h.size(); ++i)
      h.data()[i] = static_cast<T>(static_cast<float>(base::random_normal(key, 0, i)));
    Kokkos::deep_copy(wide, h);
  }
  std::vector<std::vector<double>> values() const {
    auto const h = device::host_copy(wide);
    std::vector<std::vector<double>> v(h.extent(0));
    for (std::size_t i = 0; i < v.size(); ++i)
      for (std::size_t j = 0; j < h.extent(1); ++j) v[i].push_back(static_cast<double>(h(i, j)));
    return v;
  }
};

/// Sums of k products in T, rounded to C.
template <class C>
double tolerance(std::int64_t k, double magnitude) {
  double const terms = 4.0 * static_cast<double>(k);
  if constexpr (sizeof(C) == 2)
    return 0x1p-8 * magnitude + 1e-7 * terms;
  else
    return terms * static_cast<double>(std::numeric_limits<C>::epsilon()) * (1 + magnitude);
}

template <class C>
void expect_all_close(WideMatrix<C> const& found, std::int64_t k, std::vector<std::vector<double>> const& expected) {
  auto const f = found.values();
  for (std::size_t i = 0; i < f.size(); ++i)
    for (std::size_t j = 0; j < f[i].size(); ++j)
      ASSERT_NEAR(f[i][j], expected[i][j], tolerance<C>(k, std::abs(expected[i][j]))) << "row " << i << " column " << j;
}

struct Sizes {
  std::int64_t rows = 40, inner = 11, outer = 9;
};

template <class T, class C>
void check_rows(Sizes const& sizes, Op op_b, Offsets const& offsets, float alpha, float beta) {
  auto const [rows, inner, outer] = sizes;
  SCOPED_TRACE(std::string("op ") + static_cast<char>(op_b) + " beta " + std::to_string(beta));
  auto const groups = static_cast<std::int64_t>(offsets.size()) - 1;
  bool const turned = op_b == Op::transpose;
  WideMatrix<T> const a("a", rows, inner), b("b", groups * (turned ? outer : inner), turned ? inner : outer);
  WideMatrix<C> const c("c", rows, outer);
  auto const va = a.values(), vb = b.values();
  auto expected = c.values();
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t i = offsets[g]; i < offsets[g + 1]; ++i)
      for (std::int64_t j = 0; j < outer; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < inner; ++l)
          sum += va[i][l + 2] * (turned ? vb[g * outer + j][l + 2] : vb[g * inner + l][j + 2]);
        expected[i][j + 2] = alpha * sum + beta * expected[i][j + 2];
      }
  if constexpr (std::is_floating_point_v<T>)
    linalg::grouped_gemm<T>(ExecSpace(), op_b, alpha, a.view, b.view, beta, c.view, offsets);
  else
    linalg::grouped_gemm<T, C>(ExecSpace(), op_b, alpha, a.view, b.view, beta, c.view, offsets);
  Kokkos::fence();
  expect_all_close(c, inner, expected);
}

template <class T, class C>
void check_weight(Sizes const& sizes, Offsets const& offsets, float alpha, float beta) {
  auto const [rows, inner, outer] = sizes;
  SCOPED_TRACE("weight, beta " + std::to_string(beta));
  auto const groups = static_cast<std::int64_t>(offsets.size()) - 1;
  WideMatrix<T> const a("a", rows, inner), b("b", rows, outer);
  WideMatrix<C> const c("c", groups * inner, outer);
  auto const va = a.values(), vb = b.values();
  auto expected = c.values();
  if (beta == 0)  // does not matter, not even for a group without rows
    Kokkos::deep_copy(c.view, static_cast<C>(std::numeric_limits<float>::quiet_NaN()));
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t i = 0; i < inner; ++i)
      for (std::int64_t j = 0; j < outer; ++j) {
        double sum = 0;
        for (std::int64_t l = offsets[g]; l < offsets[g + 1]; ++l) sum += va[l][i + 2] * vb[l][j + 2];
        double& x = expected[g * inner + i][j + 2];
        x = alpha * sum + beta * x;
      }
  if constexpr (std::is_floating_point_v<T>)
    linalg::grouped_gemm_weight<T>(ExecSpace(), alpha, a.view, b.view, beta, c.view, offsets);
  else
    linalg::grouped_gemm_weight<T, C>(ExecSpace(), alpha, a.view, b.view, beta, c.view, offsets);
  Kokkos::fence();
  expect_all_close(c, rows, expected);
}

template <class T, class C>
void check_all() {
  for (auto const& offsets : {Offsets{0, 10, 20, 30, 40}, Offsets{0, 0, 17, 17, 39, 40, 40}, Offsets{0, 40},
                              Offsets{0, 0, 40, 40}, Offsets{3, 9, 9, 31}, Offsets{5, 5}})
    for (float const beta : {0.0F, 1.0F}) {
      SCOPED_TRACE("groups " + std::to_string(offsets.size() - 1));
      for (Op const op_b : {Op::none, Op::transpose}) check_rows<T, C>({}, op_b, offsets, 0.5F, beta);
      check_weight<T, C>({}, offsets, 0.5F, beta);
    }
}

TEST(GroupedGemm, MatchesLoops) {
  check_all<double, double>();
  check_all<float, float>();
}
// Groups of every small number of rows, and more than one tile of a BLAS.
TEST(GroupedGemm, MatchesLoopsForLargerBlocks) {
  Offsets const offsets = {0, 8, 9, 19, 30, 42, 55, 69, 84, 150};
  for (Sizes const& sizes : {Sizes{150, 400, 100}, Sizes{150, 390, 48}, Sizes{150, 48, 130}})
    for (float const beta : {0.0F, -0.5F})
      for (Op const op_b : {Op::none, Op::transpose}) check_rows<float, float>(sizes, op_b, offsets, 0.5F, beta);
}
TEST(GroupedGemm, MatchesLoopsIn16Bits) {
  check_all<bfloat16, bfloat16>();
  check_all<bfloat16, float>();
  check_all<float16, float16>();
  check_all<float16, float>();
}

TEST(GroupedGemm, OffsetsAndShapesThatDoNotFitAreRefused) {
  auto const [rows, inner, outer] = Sizes();
  WideMatrix<float> const a("a", rows, inner), b("b", 2 * inner, outer), c("c", rows, outer), few("few", 7, outer),
      narrow("narrow", rows, outer - 1);
  auto const run = [&](Offsets const& offsets, WideMatrix<float> const& to) {
    linalg::grouped_gemm<float>(ExecSpace(), Op::none, 1.0F, a.view, b.view, 0.0F, to.view, offsets);
  };
  test::expect_error([&] { run({0, 20, 41}, c); }, "within the rows");
  test::expect_error([&] { run({0, 21, 20}, c); }, "do not fall");
  test::expect_error([&] { run({0}, c); }, "do not fall");
  test::expect_error([&] { run({0, 1, 2, 3}, c); }, "same number for every group");
  test::expect_error([&] { run({0, 3, 7}, few); }, "shapes of a grouped GEMM");
  test::expect_error([&] { run({0, 3, 7}, narrow); }, "do not fit");
}

}  // namespace
