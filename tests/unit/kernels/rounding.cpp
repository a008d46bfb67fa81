// SPDX-License-Identifier: Apache-2.0
// Conversions between precisions, weights that layers read beside master weights, moments in 16 bits, and stochastic
// rounding: its mean, its independence of the layout, and numbers that are none.

#include "support.hpp"

#include <support/errors.hpp>

#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/update.hpp>

#include <limits>
#include <tuple>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace rounding_test {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class From, class To>
Vec converted(Vec const& v) {
  auto const from = vector_of<From>(v);
  Owned1<To> const to("p3d::test::to", v.size());
  kernels::convert<From, To>(ExecSpace(), from, to);
  return host(to);
}

template <class S>
void check_conversion() {
  auto const x = random_values("convert", 3000);
  auto const f = rounded<float>(x);
  expect_same(converted<float, S>(f), rounded<S>(f), "from float");
  expect_same(converted<S, float>(rounded<S>(x)), rounded<S>(x), "to float");
}
TEST(Convert, RoundsToNearestAndWidensExactly) {
  check_conversion<bfloat16>();
  check_conversion<float16>();
  auto const x = random_values("convert", 3000);
  expect_same(converted<double, float>(x), rounded<float>(x), "double to float");
  expect_same(converted<float, double>(rounded<float>(x)), rounded<float>(x), "float to double");
  // Ties go to the even neighbour; what is too large becomes infinite.
  Vec const ties = {1.0 + 0x1p-8, 1.0 + 0x3p-8, -(1.0 + 0x1p-8), 3.39e38, 3.4e38, 0x1p-133, 0x1p-134};
  expect_same(converted<float, bfloat16>(ties),
              {1.0, 1.0 + 0x1p-6, -1.0, 3.3895313892515355e38, infinity, 0x1p-133, 0.0});
  Vec const narrow = {1.0 + 0x1p-11, 1.0 + 0x3p-11, 65519.0, 65520.0, -infinity, 0x1p-25, 0x3p-25, 0x1p-24};
  expect_same(converted<float, float16>(narrow),
              {1.0, 1.0 + 0x1p-9, 65504.0, infinity, -infinity, 0.0, 0x1p-23, 0x1p-24});
  EXPECT_TRUE(std::isnan((converted<float, bfloat16>({std::nan("")})[0])));
  EXPECT_TRUE(std::isnan((converted<float, float16>({std::nan("")})[0])));
  Owned1<float> const from("p3d::test::from", 3);
  Owned1<bfloat16> const to("p3d::test::to", 2);
  expect_error([&] { kernels::convert<float, bfloat16>(ExecSpace(), from, to); }, "keeps the number of elements");
}

constexpr std::int64_t n = 2500;  // more than two chunks
kernels::AdamW const step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0.25, true};

/// p, m, v and the stored weights after one step from the moments given.
template <class Moment, class Storage>
std::tuple<Vec, Vec, Vec, Vec> adamw(Vec const& m0, Vec const& v0) {
  auto const p = vector_of<float>(random_values("p", n)), g = vector_of<float>(random_values("g", n));
  auto const m = vector_of<Moment>(m0), v = vector_of<Moment>(v0);
  Owned1<Storage> const storage("p3d::test::storage", std::is_same_v<Storage, float> ? 0 : n);
  kernels::adamw<float, float, Moment, Storage>(ExecSpace(), step, p, g, m, v, storage);
  EXPECT_EQ(host(g), Vec(n, 0.0));
  return {host(p), host(m), host(v), host(storage)};
}

template <class Moment, class Storage>
void check_adamw() {
  auto const m0 = rounded<Moment>(random_values("m", n));
  auto v0 = rounded<Moment>(random_values("v", n));
  for (double& x : v0) x = std::abs(x);
  auto const [p, m, v, none] = adamw<float, float>(m0, v0);
  auto const [p16, m16, v16, stored] = adamw<Moment, Storage>(m0, v0);
  expect_same(p16, p, "p");  // of the moments before they are rounded
  expect_same(m16, rounded<Moment>(m), "m");
  expect_same(v16, rounded<Moment>(v), "v");
  if (!std::is_same_v<Storage, float>) expect_same(stored, rounded<Storage>(p), "stored");
}
TEST(AdamW, RoundsMomentsAndStoredWeightsOfTheStepInFloat) {
  check_adamw<float, bfloat16>();
  check_adamw<float, float16>();
  check_adamw<bfloat16, float>();
  check_adamw<bfloat16, bfloat16>();
  check_adamw<bfloat16, float16>();
}
TEST(AdamW, StoredWeightsOfAnotherSizeAreRefused) {
  auto const p = vector_of<float>(Vec(4, 0.0));
  Owned1<bfloat16> const storage("p3d::test::storage", 3);
  expect_error([&] { kernels::adamw<float, float, float, bfloat16>(ExecSpace(), step, p, p, p, p, storage); },
               "of another type than the master weights, and as many");
}

template <class S>
void check_sgd() {
  auto const p = random_values("p", n), g = random_values("g", n);
  auto const a = vector_of<float>(p), b = vector_of<float>(p), ga = vector_of<float>(g), gb = vector_of<float>(g);
  Owned1<S> const storage("p3d::test::storage", n);
  kernels::sgd<float>(ExecSpace(), {0.1, 0.01, 0.5, true}, a, ga);
  kernels::sgd<float, float, S>(ExecSpace(), {0.1, 0.01, 0.5, true}, b, gb, storage);
  expect_same(host(b), host(a));
  expect_same(host(storage), rounded<S>(host(a)));
}
TEST(Sgd, StoresTheWeightsRounded) {
  check_sgd<bfloat16>();
  check_sgd<float16>();
}

// Stochastic rounding.
auto const key = p3d::base::random_key(3, "round.layers.0.mlp.up.weight");

/// The block of a matrix with `cols` columns that starts at (row, col).
Vec round_block(Vec const& matrix, std::int64_t cols, std::int64_t row, std::int64_t col, std::int64_t height,
                std::int64_t width, std::uint64_t at_step) {
  Vec part;
  for (std::int64_t r = row; r < row + height; ++r)
    part.insert(part.end(), matrix.begin() + r * cols + col, matrix.begin() + r * cols + col + width);
  Owned2<bfloat16> const out("p3d::test::out", height, width);
  kernels::round_weights_stochastically(ExecSpace(), key, at_step, row, col, cols,
                                        matrix_of<float>(height, width, part), out);
  return host(out);
}

TEST(StochasticRounding, TheMeanOfAMillionIsTheNumber) {
  constexpr std::int64_t count = 1000000;
  for (double x : {1.0 + 0x1p-9, -3.1415927410125732, 0.1}) {
    auto const exact = static_cast<double>(static_cast<float>(x));
    auto const nearest = static_cast<double>(static_cast<float>(bfloat16(exact)));
    double const unit = std::ldexp(1.0, std::ilogb(exact) - 7);
    double const below = std::floor(exact / unit) * unit, share = (exact - below) / unit;
    double sum = 0;
    for (double v : round_block(Vec(count, exact), count, 0, 0, 1, count, 0)) {
      ASSERT_TRUE(v == below || v == below + unit) << v << " is no neighbour of " << exact;
      sum += v;
    }
    double const sigma = unit * std::sqrt(share * (1.0 - share) / count);
    EXPECT_NEAR(sum / count, exact, 4.0 * sigma);
    EXPECT_GT(std::abs(nearest - exact), 100.0 * sigma) << "to nearest would fail this test";
  }
}

TEST(StochasticRounding, EveryBlockingGivesTheSameWeights) {
  constexpr std::int64_t rows = 13, cols = 301;
  auto const x = random_values("weights", rows * cols);
  auto const whole = round_block(x, cols, 0, 0, rows, cols, 5);
  for (auto [height, width] : {std::pair{13, 150}, {1, 301}, {4, 7}, {5, 133}})
    for (std::int64_t r = 0; r < rows; r += height)
      for (std::int64_t c = 0; c < cols; c += width) {
        auto const h = std::min<std::int64_t>(height, rows - r), w = std::min<std::int64_t>(width, cols - c);
        Vec expected;
        for (std::int64_t i = r; i < r + h; ++i)
          expected.insert(expected.end(), whole.begin() + i * cols + c, whole.begin() + i * cols + c + w);
        expect_same(round_block(x, cols, r, c, h, w, 5), expected, "block");
      }
  EXPECT_NE(round_block(x, cols, 0, 0, rows, cols, 6), whole) << "another step must round otherwise";
  // Element by element, as documented.
  for (std::int64_t e = 0; e < rows * cols; ++e) {
    auto const random = p3d::base::random_word(key, 5, e / 2) >> (e % 2 * 16);
    ASSERT_EQ(whole[e], float(p3d::device::round_stochastically(static_cast<float>(x[e]), random))) << e;
  }
}

TEST(StochasticRounding, WhatBfloat16HoldsStaysAndNanAndInfinityToo) {
  Vec const held = {0.0, -0.0, 1.0, -1.5, 0x1p-133, 3.3895313892515355e38, infinity, -infinity};
  for (std::uint64_t at = 0; at < 50; ++at) {
    auto const count = static_cast<std::int64_t>(held.size());
    expect_same(round_block(held, count, 0, 0, 1, count, at), held);
    EXPECT_TRUE(std::isnan(round_block({std::nan("")}, 1, 0, 0, 1, 1, at)[0]));
  }
}

TEST(StochasticRounding, OtherShapesAreRefused) {
  Owned2<float> const master("p3d::test::master", 2, 3);
  Owned2<bfloat16> const storage("p3d::test::storage", 3, 2);
  expect_error([&] { kernels::round_weights_stochastically(ExecSpace(), key, 0, 0, 0, 3, master, storage); },
               "both have one shape");
}

}  // namespace rounding_test
