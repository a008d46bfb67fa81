// SPDX-License-Identifier: Apache-2.0
// Curves and axes of the page: no spike is lost, nothing shifts, and any numbers give labels.

#include "page/axis.hpp"
#include "page/chart.hpp"
#include "page/curve.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace {
using namespace p3d::page;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

TEST(Thinned, KeepsTheSpikesOfAMillionPoints) {
  std::vector<Point> points;
  for (int i = 0; i < 1000000; ++i) points.push_back({i * 8e-4, 100.0 + std::sin(i * 0.1)});
  points[123456].y = 5.0;
  points[765432].y = 300.0;
  auto const few = thinned(points);
  EXPECT_LE(few.size(), 800u * 4);
  EXPECT_GE(few.size(), 800u * 3);
  EXPECT_EQ(std::count(few.begin(), few.end(), points[123456]), 1);
  EXPECT_EQ(std::count(few.begin(), few.end(), points[765432]), 1);
  EXPECT_EQ(few.front(), points.front());
  EXPECT_EQ(few.back(), points.back());
  EXPECT_TRUE(std::is_sorted(few.begin(), few.end(), [](Point a, Point b) { return a.x < b.x; }));
}

TEST(Thinned, ShortCurvesStayAsTheyAre) {
  std::vector<Point> const points{{0.2, 1}, {0.9, 3}, {1.5, 2}, {7, 2}};
  EXPECT_EQ(thinned(points), points);
  EXPECT_TRUE(thinned({}).empty());
}

TEST(Smoothed, IsTheMeanAround) {
  EXPECT_EQ(smoothed({1, 2, 6, 10, 2}, 3), (std::vector<double>{1, 3, 6, 6, 2}));
  EXPECT_EQ(smoothed({4, 5}, 1), (std::vector<double>{4, 5}));
  // A straight line stays one: nothing shifts, not at the ends either.
  std::vector<double> line(1001);
  for (std::size_t i = 0; i < line.size(); ++i) line[i] = static_cast<double>(i);
  auto const same = smoothed(line, 101);
  for (std::size_t i = 0; i < line.size(); ++i) EXPECT_NEAR(same[i], line[i], 1e-9) << i;
}

TEST(Smoothed, OneHugeValueSpoilsOnlyItsNeighbours) {
  std::vector<double> values(1000, 2.5);
  values[500] = 1e300;
  values[600] = nan;
  values[700] = infinity;
  auto const mean = smoothed(values, 11);
  EXPECT_GT(mean[495], 1e298);
  for (std::size_t i : {0, 494, 506, 598, 605, 695, 999}) EXPECT_DOUBLE_EQ(mean[i], 2.5) << i;
  EXPECT_TRUE(std::isnan(mean[600]));
  EXPECT_EQ(mean[700], infinity);
}

std::vector<std::string> labels_of(Axis const& axis, int count) {
  std::vector<std::string> out;
  for (auto const& t : axis.ticks(count)) out.push_back(t.label);
  return out;
}

TEST(Axis, HasRoundTicksWithTheDigitsThatTellThemApart) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels_of(Axis(0, 400, Scale::linear, 0, 1), 5), (Labels{"0", "100", "200", "300", "400"}));
  EXPECT_EQ(labels_of(Axis(0, 1e6, Scale::linear, 0, 1), 4), (Labels{"0", "200K", "400K", "600K", "800K", "1M"}));
  EXPECT_EQ(labels_of(Axis(1.93, 2.04, Scale::linear, 0, 1), 5),
            (Labels{"1.94", "1.96", "1.98", "2.00", "2.02", "2.04"}));
  EXPECT_EQ(labels_of(Axis(0, 3e-4, Scale::linear, 0, 1), 3), (Labels{"0", "1e-4", "2e-4", "3e-4"}));
  EXPECT_EQ(labels_of(Axis(1, 1000, Scale::automatic, 0, 1), 4), (Labels{"1", "10", "100", "1K"}));
  EXPECT_EQ(labels_of(Axis(1.9, 5.5, Scale::logarithmic, 0, 1), 5), (Labels{"2", "3", "4", "5"}));
}

TEST(Axis, PlacesValues) {
  Axis const linear(10, 20, Scale::automatic, 100, 0);
  EXPECT_FALSE(linear.logarithmic());
  EXPECT_DOUBLE_EQ(linear.at(15), 50);
  Axis const log(0.01, 100, Scale::automatic, 0, 400);
  EXPECT_TRUE(log.logarithmic());
  EXPECT_NEAR(log.at(1), 200, 1e-9);
  EXPECT_TRUE(std::isnan(log.at(0)));
  EXPECT_TRUE(std::isnan(log.at(-1)));
  EXPECT_FALSE(Axis(0, 100, Scale::logarithmic, 0, 1).logarithmic());
  EXPECT_DOUBLE_EQ(Axis(5, 5, Scale::linear, 0, 10).at(5), 5);
  EXPECT_DOUBLE_EQ(Axis(5, 10, Scale::linear, 0, 10, true).at(0), 0);
}

TEST(Axis, AnyRangeHasSomeTicksInOrder) {
  std::mt19937_64 draw(1);
  std::uniform_real_distribution<double> exponent(-320, 308), share(0, 1);
  for (int i = 0; i < 20000; ++i) {
    double low = std::pow(10.0, exponent(draw)),
           high = i % 3 == 0 ? low * (1 + share(draw)) : std::pow(10.0, exponent(draw));
    if (i % 7 == 0) low = -low;
    if (low > high) std::swap(low, high);
    auto const scale = static_cast<Scale>(i % 3);
    int const count = 2 + i % 10;
    Axis const axis(low, high, scale, 0, 500);
    auto const ticks = axis.ticks(count);
    EXPECT_LE(ticks.size(), static_cast<std::size_t>(2 * count + 3)) << low << " " << high;
    EXPECT_GE(ticks.size(), 1u) << low << " " << high << " " << i % 3;
    for (std::size_t k = 0; k < ticks.size(); ++k) {
      EXPECT_GE(axis.at(ticks[k].value), -0.5) << low << " " << high;
      EXPECT_LE(axis.at(ticks[k].value), 500.5) << low << " " << high;
      EXPECT_LT(ticks[k].label.size(), 16u) << ticks[k].label;
      EXPECT_TRUE(k == 0 || ticks[k].value > ticks[k - 1].value);
    }
  }
}

TEST(ChartSvg, ShowsWhatCannotBeDrawn) {
  Chart chart;
  chart.y_title = "a < b";
  EXPECT_NE(to_svg(chart, {}).find("no value yet"), std::string::npos);
  auto& curve = chart.curves.emplace_back();
  curve.run = 3;
  curve.points = {{1, 2}, {2, nan}, {3, 1}, {4, 3}, {300, infinity}};
  curve.steps = {1, 2, 3, 4, 300};
  auto const svg = to_svg(chart, {});
  EXPECT_NE(svg.find("<title>NaN at step 2</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("<title>infinite at step 300</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("class=\"r3\""), std::string::npos);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  for (auto const* word : {"nan", "inf\"", "inf "}) EXPECT_EQ(svg.find(word), std::string::npos) << word;
  EXPECT_NE(svg.find("class=\"dot\""), std::string::npos);  // 1: NaN interrupts the line
}

}  // namespace
