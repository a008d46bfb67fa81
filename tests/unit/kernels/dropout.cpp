// SPDX-License-Identifier: Apache-2.0
// Dropout at hidden sites: the documented mask, element by element; residual forward and backward; no layout in the
// mask.

#include "support.hpp"

#include <support/errors.hpp>

#include <p3d/base/error.hpp>
#include <p3d/kernels/elementwise.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;
using kernels::TokenRows;

namespace dropout_test {

constexpr std::int64_t samples = 4, seq = 6, hidden = 133, rows = samples * seq;  // hidden is not a multiple of 4
kernels::Dropout const drop = kernels::make_dropout(0.3, 11, "site");
Vec const x = random_values("x", rows*hidden), branch = random_values("branch", rows*hidden),
          bias = random_values("bias", hidden), dy = random_values("dy", rows*hidden);

/// The factor of row r, column c when the first sample is `first`, word by word.
double factor(kernels::Dropout const& d, std::int64_t first, std::int64_t r, std::int64_t c) {
  if (!d.active()) return d.scale;
  auto const word = p3d::base::random_word(d.key, first + r / seq, (r % seq) * hidden + c);
  return word >= d.threshold ? d.scale : 0.0;
}

template <class T>
Vec forward(kernels::Dropout const& d, Vec const& a, Vec const& b, Vec const& add, TokenRows shape) {
  Owned2<T> const y("p3d::test::y", shape.rows(), hidden);
  kernels::residual_forward<T>(ExecSpace(), shape, matrix_of<T>(shape.rows(), hidden, a),
                               matrix_of<T>(shape.rows(), hidden, b), vector_of<T>(add), d, y);
  return host(y);
}
template <class T>
Vec backward(kernels::Dropout const& d, Vec const& g, TokenRows shape) {
  Owned2<T> const out("p3d::test::dbranch", shape.rows(), hidden);
  kernels::residual_backward<T>(ExecSpace(), shape, matrix_of<T>(shape.rows(), hidden, g), d, out);
  return host(out);
}

TEST(Dropout, ThresholdAndScale) {
  EXPECT_FALSE(kernels::make_dropout(0.0, 1, "a").active());
  EXPECT_EQ(kernels::make_dropout(0.0, 1, "a").scale, 1.0);
  auto const half = kernels::make_dropout(0.5, 1, "a");
  EXPECT_EQ(half.threshold, 0x80000000u);
  EXPECT_EQ(half.scale, 2.0);
  EXPECT_EQ(kernels::make_dropout(1.0 - 1e-16, 1, "a").threshold, 0xffffffffu);
  EXPECT_NE(half.key.k0, kernels::make_dropout(0.5, 1, "b").key.k0);
  for (double rate : {1.0, -0.1, std::nan("")})
    expect_error([&] { kernels::make_dropout(rate, 1, "a"); }, "a dropout rate lies in [0, 1)");
}

TEST(Dropout, AMultiplierIsThereWithAndWithoutDropout) {
  auto const d = kernels::make_dropout(0.5, 1, "a", 3.0), off = d.off();
  EXPECT_TRUE(d.active() && d.changes());
  EXPECT_EQ(d.scale, 6.0);
  EXPECT_TRUE(!off.active() && off.changes());
  EXPECT_EQ(off.scale, 3.0);
  EXPECT_FALSE(kernels::make_dropout(0.5, 1, "a").off().changes());
  auto const rows = matrix_of<double>(2, 3, {1, 2, 3, 4, 5, 6}), to = matrix_of<double>(2, 3, Vec(6));
  kernels::multiply<double>(ExecSpace(), 0.5, rows, to);
  EXPECT_EQ(host(to), (Vec{0.5, 1, 1.5, 2, 2.5, 3}));
  kernels::multiply<double>(ExecSpace(), 1.0, rows, rows);
  EXPECT_EQ(host(rows), (Vec{1, 2, 3, 4, 5, 6}));
}

// The host draws many blocks together, and what is left one by one.
TEST(Dropout, EveryLengthFromEveryPlaceInABlock) {
  for (std::int64_t n = 1; n <= 150; ++n) {
    auto const d = matrix_of<double>(5, n, Vec(5 * n, 1.0));  // rows begin at n, 2 n, ...
    kernels::dropout_in_place<double>(ExecSpace(), {0, 1, 5}, drop, d);
    auto const found = host(d);
    for (std::int64_t i = 0; i < 5 * n; ++i) {
      auto const word = p3d::base::random_word(drop.key, 0, static_cast<std::uint64_t>(i));
      ASSERT_EQ(found[static_cast<std::size_t>(i)], word >= drop.threshold ? drop.scale : 0.0) << n << " columns";
    }
  }
}

TEST(Dropout, KeepsTheStatedShare) {
  std::int64_t const n = 400;
  TokenRows const shape{0, 1, n};
  auto const d = matrix_of<double>(n, hidden, Vec(n * hidden, 1.0));
  kernels::dropout_in_place<double>(ExecSpace(), shape, drop, d);
  double kept = 0;
  for (double v : host(d)) kept += v != 0.0;
  double const share = kept / static_cast<double>(n * hidden);
  EXPECT_NEAR(share, 0.7, 5.0 * std::sqrt(0.21 / static_cast<double>(n * hidden)));  // five standard deviations
}

template <class T>
void check_residual(kernels::Dropout const& d, bool has_bias, double tolerance) {
  TokenRows const shape{9, samples, seq};
  Vec y(rows * hidden), g(rows * hidden);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < hidden; ++c) {
      std::int64_t const i = r * hidden + c;
      y[i] = x[i] + factor(d, 9, r, c) * (branch[i] + (has_bias ? bias[c] : 0.0));
      g[i] = factor(d, 9, r, c) * dy[i];
    }
  expect_close(forward<T>(d, x, branch, has_bias ? bias : Vec(), shape), y, tolerance);
  expect_close(backward<T>(d, dy, shape), g, tolerance);
  // In place.
  auto const in_place = matrix_of<T>(rows, hidden, x);
  kernels::residual_forward<T>(ExecSpace(), shape, in_place, matrix_of<T>(rows, hidden, branch),
                               vector_of<T>(has_bias ? bias : Vec()), d, in_place);
  expect_close(host(in_place), y, tolerance);
  auto const gradient = matrix_of<T>(rows, hidden, dy);
  kernels::dropout_in_place<T>(ExecSpace(), shape, d, gradient);
  expect_close(host(gradient), g, tolerance);
}

TEST(Residual, MatchesTheDocumentedMask) {
  for (bool has_bias : {false, true}) {
    check_residual<double>(drop, has_bias, 1e-15);
    check_residual<float>(drop, has_bias, 5e-7);
    check_residual<double>(kernels::Dropout{}, has_bias, 1e-15);
    check_residual<float>(kernels::Dropout{}, has_bias, 5e-7);
    auto const multiplied = kernels::make_dropout(0.3, 11, "site", 0.25);
    EXPECT_EQ(multiplied.threshold, kernels::make_dropout(0.3, 11, "site").threshold);
    check_residual<double>(multiplied, has_bias, 1e-15);
    check_residual<double>(multiplied.off(), has_bias, 1e-15);
    check_residual<float>(multiplied.off(), has_bias, 5e-7);
  }
}

// Some rows of the samples give what they give among all of them.
TEST(Residual, OfSomeRowsIsThatOfAll) {
  auto const whole = forward<double>(drop, x, branch, bias, {9, samples, seq}),
             gradient = backward<double>(drop, dy, {9, samples, seq});
  std::int64_t const cuts[] = {0, 5, 6, 20, 24};
  for (int i = 0; i < 4; ++i) {
    auto const begin = cuts[i], end = cuts[i + 1];
    auto const part = [&](Vec const& all) { return Vec(all.begin() + begin * hidden, all.begin() + end * hidden); };
    TokenRows const shape{9, samples, seq, begin};
    auto const n = end - begin;
    Owned2<double> const y("p3d::test::y", n, hidden), d("p3d::test::d", n, hidden);
    kernels::residual_forward<double>(ExecSpace(), shape, matrix_of<double>(n, hidden, part(x)),
                                      matrix_of<double>(n, hidden, part(branch)), vector_of<double>(bias), drop, y);
    expect_same(host(y), part(whole));
    kernels::residual_backward<double>(ExecSpace(), shape, matrix_of<double>(n, hidden, part(dy)), drop, d);
    expect_same(host(d), part(gradient));
  }
}

template <class S>
void check_16_bits(kernels::Dropout const& d, bool has_bias) {
  TokenRows const shape{9, samples, seq};
  auto const a = rounded<S>(x), b = rounded<S>(branch), add = has_bias ? rounded<S>(bias) : Vec(), g = rounded<S>(dy);
  expect_rounded<S>(forward<S>(d, a, b, add, shape), forward<double>(d, a, b, add, shape), "forward");
  expect_rounded<S>(backward<S>(d, g, shape), backward<double>(d, g, shape), "backward");
  auto const in_place = matrix_of<S>(rows, hidden, g);
  kernels::dropout_in_place<S>(ExecSpace(), shape, d, in_place);
  expect_same(host(in_place), backward<S>(d, g, shape), "in place");
  // The mask of float.
  Vec const ones(rows * hidden, 1.0);
  auto const found = backward<S>(d, ones, shape), expected = backward<float>(d, ones, shape);
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i] == 0.0, expected[i] == 0.0) << i;
}
TEST(Residual, In16BitsIsTheOneInDoubleRoundedOnce) {
  for (bool has_bias : {false, true})
    for (auto const& d : {drop, kernels::Dropout{}}) {
      check_16_bits<bfloat16>(d, has_bias);
      check_16_bits<float16>(d, has_bias);
    }
}

TEST(Residual, BackwardMatchesFiniteDifferences) {
  TokenRows const shape{2, 1, 3};
  std::int64_t const n = shape.rows() * hidden;
  Vec const a(x.begin(), x.begin() + n), b(branch.begin(), branch.begin() + n), g(dy.begin(), dy.begin() + n);
  expect_gradient([&](Vec const& v) { return dot(forward<double>(drop, a, v, bias, shape), g); }, b,
                  backward<double>(drop, g, shape), "dbranch");
}

TEST(Dropout, TheSplitOfSamplesDoesNotChangeTheMask) {
  auto const whole = backward<double>(drop, dy, TokenRows{7, 4, seq});
  std::int64_t const cut = 3 * seq * hidden;
  auto parts = backward<double>(drop, Vec(dy.begin(), dy.begin() + cut), TokenRows{7, 3, seq});
  auto const tail = backward<double>(drop, Vec(dy.begin() + cut, dy.end()), TokenRows{10, 1, seq});
  parts.insert(parts.end(), tail.begin(), tail.end());
  expect_same(parts, whole);
  EXPECT_NE(backward<double>(drop, dy, TokenRows{8, 4, seq}), whole) << "another sample must have another mask";
}

}  // namespace dropout_test
