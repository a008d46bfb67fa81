// SPDX-License-Identifier: Apache-2.0
// GEMMs of 16-bit matrices against three loops in double, within the bound that gemm.hpp states, by every method that
// this machine has.

#include <p3d/base/random.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/gemm.hpp>

#include <linalg/gemm16.hpp>
#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using namespace p3d;
using device::bfloat16;
using device::ExecSpace;
using device::float16;
using device::Owned2;
using device::View2;
using linalg::Op;
using linalg::detail::HostMethod;
using linalg::detail::Type16;

/// The unit roundoff of what is stored.
template <class C>
double roundoff() {
  return std::is_same_v<C, float> ? 0.0 : std::is_same_v<C, bfloat16> ? 0x1p-8 : 0x1p-11;
}
/// Half of the smallest positive number: what rounding may take from numbers below the normal range.
template <class C>
double least() {
  return std::is_same_v<C, float16> ? 0x1p-25 : 0x1p-134;
}

/// A [rows, cols] range inside a wider matrix, random everywhere.
template <class T>
struct Matrix16 {
  std::int64_t rows, cols, left, width;
  Owned2<T> wide;
  View2<T> view;
  Matrix16(std::string_view name, std::int64_t rows_, std::int64_t cols_, std::int64_t left_, std::int64_t right)
      : rows(rows_),
        cols(cols_),
        left(left_),
        width(left_ + cols_ + right),
        wide("p3d::test::matrix16", rows_, width),
        view(device::columns(View2<T>(wide), left_, left_ + cols_)) {
    auto const host = device::host_mirror(wide);
    auto const key = base::random_key(5, name);
    for (std::size_t i = 0; i < host.size(); ++i)
      host.data()[i] = static_cast<T>(static_cast<float>(base::random_normal(key, 0, i)));
    Kokkos::deep_copy(wide, host);
  }
  /// All of the wide matrix, exactly.
  std::vector<double> all() const {
    auto const host = device::host_copy(wide);
    std::vector<double> out(host.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(static_cast<float>(host.data()[i]));
    return out;
  }
};

struct Case {
  Op op_a, op_b;
  std::int64_t m, n, k;
  float alpha, beta;
  std::int64_t margin;
};

template <class S, class C>
void check(Case const& p) {
  auto const [op_a, op_b, m, n, k, alpha, beta, margin] = p;
  SCOPED_TRACE(std::string("op ") + static_cast<char>(op_a) + static_cast<char>(op_b) + " m " + std::to_string(m) +
               " n " + std::to_string(n) + " k " + std::to_string(k) + " margin " + std::to_string(margin));
  bool const a_is = op_a == Op::none, b_is = op_b == Op::none;
  Matrix16<S> const a("a", a_is ? m : k, a_is ? k : m, margin, 2 * margin);
  Matrix16<S> const b("b", b_is ? k : n, b_is ? n : k, 2 * margin, margin);
  Matrix16<C> const c("c", m, n, margin, margin);
  auto const ha = a.all(), hb = b.all(), before = c.all();
  linalg::gemm<S, C>(ExecSpace(), op_a, op_b, alpha, a.view, b.view, beta, c.view);
  Kokkos::fence();
  auto const after = c.all();
  constexpr double u = 0x1p-24;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < c.width; ++j) {
      auto const at = static_cast<std::size_t>(i * c.width + j);
      std::int64_t const col = j - c.left;
      if (col < 0 || col >= n) {
        ASSERT_EQ(after[at], before[at]) << "beside C";
        continue;
      }
      double sum = 0, size = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        double const x = ha[static_cast<std::size_t>(a_is ? i * a.width + a.left + l : l * a.width + a.left + i)];
        double const y = hb[static_cast<std::size_t>(b_is ? l * b.width + b.left + col : col * b.width + b.left + l)];
        sum += x * y;
        size += std::abs(x * y);
      }
      double const exact = alpha * sum + beta * before[at];
      double const in_float = static_cast<double>(k + 2) * u * (std::abs(alpha) * size + std::abs(beta * before[at]));
      // cuBLAS rounds the product before it adds it to C, and then the sum.
      double const product = device::on_host() || beta == 0 ? 0.0 : roundoff<C>() * std::abs(alpha * sum);
      ASSERT_NEAR(after[at], exact, in_float + product + roundoff<C>() * (std::abs(exact) + in_float) + least<C>())
          << "row " << i << " column " << col;
    }
  }
}

/// With one method, for as long as it lives.
struct By {
  explicit By(HostMethod method) { linalg::detail::set_host_method(method); }
  ~By() { linalg::detail::set_host_method(HostMethod::automatic); }
};

template <class S>
bool has_onednn() {
  return !linalg::detail::onednn_method(std::is_same_v<S, bfloat16> ? Type16::bfloat16 : Type16::float16).empty();
}

template <class S, class C>
void check_all(float alpha, float beta) {
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
                                                                     {4, 3, 0},
                                                                     {0, 3, 4},
                                                                     {3, 0, 4}})
          check<S, C>({op_a, op_b, m, n, k, alpha, beta, margin});
  // Over more than one panel in each direction.
  using namespace linalg::detail;
  check<S, C>({Op::none, Op::transpose, panel_rows + 6, 9, panel_depth + 7, alpha, beta, 0});
  check<S, C>({Op::none, Op::none, 7, panel_cols + 3, 2 * panel_depth + 5, alpha, beta, 1});
  check<S, C>({Op::transpose, Op::none, panel_rows + 3, panel_cols + 5, 9, alpha, beta, 0});
}

template <class Pair>
class Gemm16 : public ::testing::Test {};
using Pairs = ::testing::Types<std::pair<bfloat16, bfloat16>, std::pair<bfloat16, float>, std::pair<float16, float16>,
                               std::pair<float16, float>>;
TYPED_TEST_SUITE(Gemm16, Pairs);

template <class Pair>
void every_factor() {
  using S = typename Pair::first_type;
  using C = typename Pair::second_type;
  for (auto [alpha, beta] : {std::pair{1.0F, 0.0F}, {1.0F, 1.0F}, {-0.5F, 0.25F}}) check_all<S, C>(alpha, beta);
}

TYPED_TEST(Gemm16, KeepsTheBound) { every_factor<TypeParam>(); }

TYPED_TEST(Gemm16, KeepsTheBoundWithWidenedPanels) {
  By const method(HostMethod::widened);
  every_factor<TypeParam>();
}

template <class C>
void with_onednn() {
  using S = bfloat16;
  for (float const beta : {0.0F, 1.0F}) {
    for (Op op_b : {Op::none, Op::transpose}) {
      for (std::int64_t const margin : {0, 3}) {
        check<S, C>({Op::none, op_b, 131, 190, 70, 1.0F, beta, margin});
        check<S, C>({Op::none, op_b, 64, 96, 128, 1.0F, beta, margin});
        check<S, C>({Op::none, op_b, 530, 33, 1100, 1.0F, beta, margin});
      }
    }
    if constexpr (std::is_same_v<C, float>) {
      check<S, C>({Op::transpose, Op::none, 131, 190, 70, 1.0F, beta, 3});
      check<S, C>({Op::transpose, Op::none, 70, 34, 12001, 1.0F, beta, 0});
    }
  }
}

// The shapes that training has are oneDNN's, not left to the widened panels unnoticed.
TEST(Gemm16OneDnn, KeepsTheBound) {
  if (!has_onednn<bfloat16>()) GTEST_SKIP() << "no oneDNN, or a processor without units for bfloat16";
  By const method(HostMethod::onednn);
  with_onednn<bfloat16>();
  with_onednn<float>();
}

// 4097 = 4096 + 1 is no bfloat16, and 2049 no float16: sums of 16 bits would stand still.
TYPED_TEST(Gemm16, SumsAreOfFloat) {
  using S = typename TypeParam::first_type;
  std::int64_t const k = 5000;
  for (auto const method : {HostMethod::automatic, HostMethod::widened}) {
    By const by(method);
    Matrix16<S> const a("a", 3, k, 0, 0), b("b", k, 5, 0, 0);
    Matrix16<float> const c("c", 3, 5, 0, 0);
    Kokkos::deep_copy(a.wide, S(1.0F));
    Kokkos::deep_copy(b.wide, S(1.0F));
    linalg::gemm<S>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 0.0F, c.view);
    for (double const x : c.all()) EXPECT_EQ(x, 5000.0);
    Kokkos::deep_copy(c.wide, 16777215.0F);
    Kokkos::deep_copy(b.wide, S(0x1p-12F));  // adds 1 + 904 2^-12
    linalg::gemm<S>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 1.0F, c.view);
    for (double const x : c.all()) EXPECT_NEAR(x, 16777216.0, 1.0);
  }
}

TYPED_TEST(Gemm16, BetaZeroOverwritesNan) {
  using S = typename TypeParam::first_type;
  using C = typename TypeParam::second_type;
  for (auto const method : {HostMethod::automatic, HostMethod::widened}) {
    By const by(method);
    for (std::int64_t const k : {0, 5, 600}) {
      Matrix16<S> const a("a", 4, k, 0, 0), b("b", k, 3, 0, 0);
      Matrix16<C> const c("c", 4, 3, 0, 0);
      Kokkos::deep_copy(c.wide, static_cast<C>(std::numeric_limits<float>::quiet_NaN()));
      linalg::gemm<S>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 0.0F, c.view);
      for (double const x : c.all()) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// What overflows in training must be seen.
TYPED_TEST(Gemm16, InfinityAndNanComeThrough) {
  using S = typename TypeParam::first_type;
  for (auto const method : {HostMethod::automatic, HostMethod::widened}) {
    By const by(method);
    for (float const bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Matrix16<S> const a("a", 40, 70, 0, 0), b("b", 70, 50, 0, 0), c("c", 40, 50, 0, 0);
      Kokkos::deep_copy(a.wide, S(1.0F));
      Kokkos::deep_copy(b.wide, S(1.0F));
      Kokkos::deep_copy(device::columns(View2<S>(a.wide), 69, 70), S(bad));
      linalg::gemm<S>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 0.0F, c.view);
      for (double const x : c.all()) EXPECT_EQ(std::isnan(x), std::isnan(bad));
      for (double const x : c.all()) EXPECT_FALSE(std::isfinite(x));
    }
  }
}

TYPED_TEST(Gemm16, GivesTheSameBitsAgain) {
  using S = typename TypeParam::first_type;
  using C = typename TypeParam::second_type;
  for (auto const method : {HostMethod::automatic, HostMethod::widened}) {
    By const by(method);
    Matrix16<S> const a("a", 200, 700, 0, 0), b("b", 300, 700, 0, 0);
    Matrix16<C> const c("c", 200, 300, 0, 0);
    std::vector<double> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      linalg::gemm<S>(ExecSpace(), Op::none, Op::transpose, 1.0F, a.view, b.view, 0.0F, c.view);
      Kokkos::fence();
      if (repeat == 0) first = c.all();
      EXPECT_EQ(c.all(), first);
    }
  }
}

TYPED_TEST(Gemm16, RefusesShapesThatDoNotFit) {
  using S = typename TypeParam::first_type;
  Matrix16<S> const a("a", 4, 5, 0, 0), b("b", 4, 3, 0, 0), c("c", 4, 3, 0, 0);
  test::expect_error([&] { linalg::gemm<S>(ExecSpace(), Op::none, Op::none, 1.0F, a.view, b.view, 0.0F, c.view); },
                     "shapes of a GEMM do not fit");
}

TEST(Gemm16Method, IsNamed) {
  std::string const bf16 = linalg::gemm_method<bfloat16>(), fp16 = linalg::gemm_method<float16>();
  EXPECT_FALSE(bf16.empty());
  if (bf16.starts_with("oneDNN")) {
    EXPECT_TRUE(has_onednn<bfloat16>());
    EXPECT_NE(fp16, bf16) << "oneDNN may add float16 products up in float16";
  }
}

}  // namespace
