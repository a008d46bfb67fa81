// SPDX-License-Identifier: Apache-2.0
// gemm against three loops in long double, for every transposition, column ranges of wider matrices and empty sizes.

#include <p3d/base/error.hpp>
#include <p3d/base/float16.hpp>
#include <p3d/base/poll.hpp>
#include <p3d/base/random.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/batched_gemm.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/linalg/grouped_gemm.hpp>

#include <linalg/slices.hpp>
#include <support/errors.hpp>
#include <support/processor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace {

using p3d::device::ExecSpace;
using p3d::device::Owned2;
using p3d::device::View2;
using p3d::linalg::Op;

/// A [rows, cols] range inside a wider matrix, random everywhere, with its values on the host.
template <class T>
struct Matrix {
  std::int64_t rows, cols;
  Owned2<T> wide;
  View2<T> view;
  Matrix(std::string_view name, std::int64_t rows_, std::int64_t cols_, std::int64_t left, std::int64_t right)
      : rows(rows_),
        cols(cols_),
        wide("p3d::test::matrix", rows_, left + cols_ + right),
        view(p3d::device::columns(View2<T>(wide), left, left + cols_)) {
    auto const host = p3d::device::host_mirror(wide);
    auto const key = p3d::base::random_key(3, name);
    for (std::size_t i = 0; i < host.size(); ++i) host.data()[i] = static_cast<T>(p3d::base::random_normal(key, 0, i));
    Kokkos::deep_copy(wide, host);
  }
  /// All of the wide matrix.
  std::vector<T> all() const {
    auto const host = p3d::device::host_copy(wide);
    return {host.data(), host.data() + host.size()};
  }
};

template <class T>
void check(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T beta, std::int64_t margin,
           T (*rounded)(T) = nullptr) {
  SCOPED_TRACE(std::string("op ") + static_cast<char>(op_a) + static_cast<char>(op_b) + " m " + std::to_string(m) +
               " n " + std::to_string(n) + " k " + std::to_string(k) + " margin " + std::to_string(margin));
  Matrix<T> const a("a", op_a == Op::none ? m : k, op_a == Op::none ? k : m, margin, 2 * margin);
  Matrix<T> const b("b", op_b == Op::none ? k : n, op_b == Op::none ? n : k, 2 * margin, margin);
  Matrix<T> const c("c", m, n, margin, margin);
  auto ha = a.all(), hb = b.all();
  auto const before = c.all();
  p3d::linalg::gemm<T>(ExecSpace(), op_a, op_b, alpha, a.view, b.view, beta, c.view);
  Kokkos::fence();
  if (rounded != nullptr) {
    std::transform(ha.begin(), ha.end(), ha.begin(), rounded);
    std::transform(hb.begin(), hb.end(), hb.begin(), rounded);
  }
  auto const after = c.all();
  auto const lda = a.cols + 3 * margin, ldb = b.cols + 3 * margin, ldc = n + 2 * margin;
  double const tolerance = 4.0 * std::numeric_limits<T>::epsilon() * (1.0 + std::sqrt(static_cast<double>(k))) * 4.0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < ldc; ++j) {
      std::int64_t const col = j - margin;
      if (col < 0 || col >= n) {
        ASSERT_EQ(after[i * ldc + j], before[i * ldc + j])
            << "wrote beside the column range, row " << i << " column " << col;
        continue;
      }
      long double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        auto const x = op_a == Op::none ? ha[i * lda + margin + l] : ha[l * lda + margin + i];
        auto const y = op_b == Op::none ? hb[l * ldb + 2 * margin + col] : hb[col * ldb + 2 * margin + l];
        sum += static_cast<long double>(x) * y;
      }
      double const expected = static_cast<double>(alpha * sum + beta * static_cast<long double>(before[i * ldc + j]));
      ASSERT_NEAR(after[i * ldc + j], expected, tolerance * (1.0 + std::abs(expected)))
          << "row " << i << " column " << col;
    }
}

template <class T>
void check_all(T alpha, T beta) {
  for (Op op_a : {Op::none, Op::transpose})
    for (Op op_b : {Op::none, Op::transpose})
      for (std::int64_t margin : {0, 3})
        for (auto [m, n, k] : std::vector<std::tuple<int, int, int>>{{1, 1, 1},
                                                                     {1, 7, 5},
                                                                     {7, 1, 5},
                                                                     {5, 7, 1},
                                                                     {33, 17, 65},
                                                                     {64, 48, 32},
                                                                     {131, 190, 70},
                                                                     {257, 90, 67},
                                                                     {4, 3, 0},
                                                                     {0, 3, 4},
                                                                     {3, 0, 4}})
          check<T>(op_a, op_b, m, n, k, alpha, beta, margin);
}

TEST(Gemm, MatchesThreeLoopsInDouble) { check_all<double>(1.0, 0.0); }
TEST(Gemm, MatchesThreeLoopsInFloat) { check_all<float>(1.0f, 0.0f); }
TEST(Gemm, AlphaAndBetaInDouble) { check_all<double>(-0.5, 1.0); }
TEST(Gemm, AlphaAndBetaInFloat) { check_all<float>(2.0f, 0.25f); }

float to_bf16(float x) { return p3d::base::bfloat16_value(p3d::base::bfloat16_bits(x)); }
float to_fp16(float x) { return p3d::base::float16_value(p3d::base::float16_bits(x)); }

// Operands in 16 bits, of which products and sums are in float: for every transposition, with several panels each way,
// also where many GEMMs are one call and where rows belong to groups. In float the results differ by a thousandth.
TEST(RoundedGemm, IsTheGemmOfRoundedOperands) {
  using p3d::linalg::Operands;
  for (auto [to, rounded] : {std::pair{Operands::bf16, &to_bf16}, std::pair{Operands::fp16, &to_fp16}}) {
    bool const rounds = p3d::linalg::round_operands(to);
#if defined(P3D_PORTABLE_FORM)
    ASSERT_FALSE(rounds);
#endif
    if (!p3d::linalg::detail::on_host) {  // a GPU's library may round, and says by no rule how
      p3d::linalg::round_operands(Operands::fp32);
      continue;
    }
    ASSERT_TRUE(rounds);
    for (Op op_a : {Op::none, Op::transpose})
      for (Op op_b : {Op::none, Op::transpose})
        for (auto [m, n, k] : std::vector<std::tuple<int, int, int>>{
                 {1, 7, 5}, {33, 17, 65}, {4, 3, 0}, {0, 3, 4}, {1030, 20, 400}, {3, 800, 390}})
          check<float>(op_a, op_b, m, n, k, 2.0F, 0.25F, 3, rounded);
    Matrix<float> const a("a", 6, 8, 0, 0), b("b", 8, 4, 0, 0), one("c", 6, 4, 0, 0), other("d", 6, 4, 0, 0);
    auto const gemm = [&](View2<float> c) {
      p3d::linalg::gemm<float>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 0.0F, c);
    };
    gemm(one.view);
    p3d::linalg::batched_gemm<float, float>(ExecSpace(), Op::none, Op::none, {2, 3, 4, 8}, 1.0F, {a.view.data(), 8, 24},
                                            {b.view.data(), 4, 0}, 0.0F, {other.view.data(), 4, 12});
    Kokkos::fence();
    for (std::size_t i = 0; i < 24; ++i) EXPECT_NEAR(other.all()[i], one.all()[i], 1e-5);
    std::vector<std::int64_t> const offsets{0, 6};
    p3d::linalg::grouped_gemm<float>(ExecSpace(), Op::none, 1.0F, a.view, b.view, 0.0F, other.view, offsets);
    Kokkos::fence();
    for (std::size_t i = 0; i < 24; ++i) EXPECT_NEAR(other.all()[i], one.all()[i], 1e-5);
    EXPECT_TRUE(p3d::linalg::round_operands(Operands::fp32));
    gemm(other.view);
    Kokkos::fence();
    double most = 0.0;
    for (std::size_t i = 0; i < 24; ++i) most = std::max(most, std::abs(double{other.all()[i]} - one.all()[i]));
    EXPECT_GT(most, 1e-4);
  }
  EXPECT_TRUE(p3d::linalg::round_operands(Operands::fp32));
}

template <class T>
void overwrites_nan(std::int64_t k) {
  Matrix<T> const a("a", 4, k, 0, 0), b("b", k, 3, 0, 0), c("c", 4, 3, 0, 0);
  Kokkos::deep_copy(c.wide, std::numeric_limits<T>::quiet_NaN());
  p3d::linalg::gemm<T>(ExecSpace(), Op::none, Op::none, T(1), a.view, b.view, T(0), c.view);
  Kokkos::fence();
  for (T x : c.all()) EXPECT_TRUE(std::isfinite(x));
}

TEST(Gemm, BetaZeroOverwritesNan) {
  overwrites_nan<float>(5);
  overwrites_nan<double>(5);
  overwrites_nan<float>(0);
  overwrites_nan<double>(0);
}

/// True when runs of blocks of rows give the bits of one call.
template <class T>
bool blocks_keep_bits(Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t run) {
  Matrix<T> const a("a", m, k, 0, 0), b("b", op_b == Op::none ? k : n, op_b == Op::none ? n : k, 0, 0);
  Matrix<T> const whole("c", m, n, 0, 0), parts("d", m, n, 0, 0);
  p3d::linalg::gemm<T>(ExecSpace(), Op::none, op_b, T(1), a.view, b.view, T(0), whole.view);
  auto const width = run * p3d::linalg::gemm_row_block;
  for (std::int64_t begin = 0; begin < m;) {
    auto const end = begin + width + p3d::linalg::gemm_row_block <= m ? begin + width : m;
    using Rows = Kokkos::pair<std::int64_t, std::int64_t>;
    p3d::linalg::gemm<T>(ExecSpace(), Op::none, op_b, T(1), Kokkos::subview(a.view, Rows(begin, end), Kokkos::ALL),
                         b.view, T(0), Kokkos::subview(parts.view, Rows(begin, end), Kokkos::ALL));
    begin = end;
  }
  return whole.all() == parts.all();
}

TEST(Gemm, BlocksOfRowsKeepTheBitsOfOneCall) {
  if (!p3d::linalg::detail::on_host || ExecSpace().concurrency() > 1) GTEST_SKIP() << "said of the BLAS in one thread";
  if (p3d::test::has_avx512()) GTEST_SKIP() << "rows of GEMMs were not looked at with AVX-512";
  for (auto const op_b : {Op::none, Op::transpose}) {
    for (std::int64_t const m : {97, 192, 389, 1025}) {
      for (std::int64_t const run : {1, 2, 5}) {
        for (auto const& [n, k] : {std::pair{64, 96}, {250, 700}, {36, 1000}}) {
          EXPECT_TRUE(blocks_keep_bits<float>(op_b, m, n, k, run)) << m << ' ' << n << ' ' << k << ' ' << run;
          EXPECT_TRUE(blocks_keep_bits<double>(op_b, m, n, k, run)) << m << ' ' << n << ' ' << k << ' ' << run;
        }
      }
    }
  }
}

// 2 GFLOP: pieces of the longer side, by rows and by columns. Each element is the same sum.
TEST(Gemm, LooksAfterMessagesWithinALongOne) {
  bool const on_host = p3d::linalg::detail::on_host;  // devices run by themselves
  int const threads = ExecSpace().concurrency(), pieces_wanted = on_host ? (2 + threads - 1) / threads : 1;
  static int polls = 0;
  for (auto const& [m, n] : {std::pair{4000, 250}, {250, 4000}}) {
    for (auto const& ops : {std::pair{Op::none, Op::transpose}, {Op::transpose, Op::none}}) {
      auto const ta = ops.first, tb = ops.second;  // Clang before 16 captures no structured binding
      std::int64_t const k = 1000;
      bool const turns_a = ta == Op::transpose, turns_b = tb == Op::transpose;
      Matrix<float> const a("a", turns_a ? k : m, turns_a ? m : k, 0, 3),
          b("b", turns_b ? n : k, turns_b ? k : n, 5, 0);
      Matrix<float> const whole("c", m, n, 2, 1);
      auto const run = [&](Matrix<float> const& c) {
        p3d::linalg::gemm<float>(ExecSpace(), ta, tb, 1.0F, a.view, b.view, 0.5F, c.view);
      };
      run(whole);
      auto const expected = whole.all();
      using p3d::base::Polls;
      struct Case {
        Polls rule;
        bool (*function)();
        bool often;
      };
      for (auto const& [rule, function, often] : {Case{Polls::rare, [] { return ++polls > 0; }, false},
                                                  {Polls::often, [] { return ++polls < 0; }, true},
                                                  {Polls::as_answered, [] { return ++polls > 0; }, true},
                                                  {Polls::as_answered, [] { return ++polls < 0; }, false}}) {
        Matrix<float> const pieces("c", m, n, 2, 1);
        polls = 0;
        {
          p3d::base::Polling const polling(function, rule);
          run(pieces);
        }
        EXPECT_GE(polls, often && on_host ? 15 / threads : pieces_wanted) << m << " x " << n;
        if (!often) {
          EXPECT_LE(polls, pieces_wanted + 1) << m << " x " << n;
        }
        auto const got = pieces.all();
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4 * std::sqrt(1000.0)) << i;
      }
    }
  }
}

TEST(Gemm, RefusesShapesThatDoNotFit) {
  Matrix<float> const a("a", 4, 5, 0, 0), b("b", 4, 3, 0, 0), c("c", 4, 3, 0, 0);
  p3d::test::expect_error(
      [&] { p3d::linalg::gemm<float>(ExecSpace(), Op::none, Op::none, 1.0f, a.view, b.view, 0.0f, c.view); },
      "shapes of a GEMM do not fit");
}

TEST(BlasThreads, WhatIsSetIsInForce) {
  for (int threads : {1, 2, 1}) {
    int const in_force = p3d::linalg::set_blas_threads(threads);
    if (in_force == 0) GTEST_SKIP() << "this BLAS cannot be told how many threads to use";
    EXPECT_EQ(in_force, threads);
  }
  p3d::test::expect_error([] { p3d::linalg::set_blas_threads(0); }, "the BLAS needs at least one thread");
}

}  // namespace
