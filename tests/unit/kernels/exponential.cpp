// SPDX-License-Identifier: Apache-2.0
// The exponentials and tangents that vectorise, against those of the C library.

#include <kernels/numeric.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

using p3d::kernels::exp_polynomial;
using p3d::kernels::tanh_polynomial;

TEST(Exponential, TwoUnitsInTheLastPlaceOverTheRange) {
  for (double x = -87.0; x <= 87.0; x += 0.00137) {
    float const arg = static_cast<float>(x);
    double const expected = std::exp(static_cast<double>(arg));
    ASSERT_NEAR(exp_polynomial(arg), expected, 2.4e-7 * expected) << "x = " << x;
  }
  EXPECT_EQ(exp_polynomial(0.0f), 1.0f);
}

TEST(Exponential, DoubleTwoUnitsInTheLastPlaceOverTheRange) {
  double worst = 0;
  for (double x = -708.0; x <= 708.0; x += 0.00437) {
    long double const expected = std::exp(static_cast<long double>(x));
    double const rounded = static_cast<double>(expected);
    double const unit = std::nextafter(rounded, std::numeric_limits<double>::infinity()) - rounded;
    worst = std::max(worst, static_cast<double>(std::abs(exp_polynomial(x) - expected)) / unit);
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(exp_polynomial(0.0), 1.0);
}

TEST(Exponential, DoubleSaturatesAndKeepsNan) {
  double const infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isfinite(exp_polynomial(infinity)));
  EXPECT_GT(exp_polynomial(infinity), 3e307);
  EXPECT_LT(exp_polynomial(-infinity), 4e-308);
  EXPECT_GT(exp_polynomial(-infinity), 0.0);
  EXPECT_TRUE(std::isnan(exp_polynomial(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Exponential, SaturatesAndKeepsNan) {
  float const infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isfinite(exp_polynomial(infinity)));
  EXPECT_GT(exp_polynomial(infinity), 6e37f);
  EXPECT_LT(exp_polynomial(-infinity), 2e-38f);
  EXPECT_GE(exp_polynomial(-infinity), 0.0f);
  EXPECT_TRUE(std::isnan(exp_polynomial(std::numeric_limits<float>::quiet_NaN())));
}

// Small arguments too, where 1 - 2 / (1 + exp(2x)) would have lost its digits.
template <class T, class Wide>
double worst_tangent() {
  double worst = 0;
  auto const check = [&](double x) {
    T const arg = static_cast<T>(x);
    auto const expected = std::tanh(static_cast<Wide>(arg));
    auto const rounded = static_cast<T>(std::abs(expected));
    double const unit = static_cast<double>(std::nextafter(rounded, T(2)) - rounded);
    worst = std::max(worst, static_cast<double>(std::abs(static_cast<Wide>(tanh_polynomial(arg)) - expected)) / unit);
  };
  for (double x = -30.0; x <= 30.0; x += 0.00137) check(x);
  for (double x = 1e-30; x < 1.0; x *= 1.01) check(x), check(-x);
  return worst;
}
TEST(Tangent, AFewUnitsInTheLastPlaceOverTheRange) {
  EXPECT_LE((worst_tangent<float, double>()), 4.0);
  EXPECT_LE((worst_tangent<double, long double>()), 4.0);
}

TEST(Tangent, SaturatesAndKeepsNan) {
  double const infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(tanh_polynomial(infinity), 1.0);
  EXPECT_EQ(tanh_polynomial(-infinity), -1.0);
  EXPECT_EQ(tanh_polynomial(-1e30f), -1.0f);
  EXPECT_EQ(tanh_polynomial(0.0), 0.0);
  EXPECT_TRUE(std::isnan(tanh_polynomial(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(tanh_polynomial(std::numeric_limits<float>::quiet_NaN())));
}
