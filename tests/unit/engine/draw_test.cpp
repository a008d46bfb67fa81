// SPDX-License-Identifier: Apache-2.0
// Which tokens top_k and top_p leave, from probabilities of 0.4, 0.3, 0.2 and 0.1.

#include "engine/draw.hpp"

#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace {

using p3d::engine::SampleOptions;

std::set<int> left(std::int64_t top_k, double top_p) {
  std::vector<double> const logits{std::log(0.2), std::log(0.4), std::log(0.1), std::log(0.3)};
  SampleOptions o;
  o.top_k = top_k;
  o.top_p = top_p;
  std::set<int> out;
  for (int i = 1; i <= 1000; ++i) out.insert(p3d::engine::draw(logits, o, i / 1000.0));
  return out;
}

TEST(Draw, RefusesWhatIsNotFinite) {
  for (double bad : {std::nan(""), HUGE_VAL})
    for (std::size_t place : {0, 3})
      for (double temperature : {0.0, 1.0}) {
        std::vector<double> logits(5, 1.0);
        logits[place] = bad;
        SampleOptions o;
        o.temperature = temperature;
        try {
          p3d::engine::draw(logits, o, 0.5);
          FAIL() << "drew from " << bad;
        } catch (p3d::base::Error const& e) {
          EXPECT_EQ(e.code(), p3d::base::ExitCode::not_finite);
        }
      }
  EXPECT_EQ(p3d::engine::draw(std::vector{-HUGE_VAL, 1.0}, {}, 0.5), 1);  // a token that never comes
}

TEST(Draw, TopKOrTopPAlone) {
  EXPECT_EQ(left(0, 1.0), (std::set{0, 1, 2, 3}));
  EXPECT_EQ(left(3, 1.0), (std::set{0, 1, 3}));
  EXPECT_EQ(left(9, 1.0), (std::set{0, 1, 2, 3}));
  EXPECT_EQ(left(0, 0.5), (std::set{1, 3}));  // 0.4 is not enough, 0.7 is
  EXPECT_EQ(left(0, 0.3), (std::set{1}));
  EXPECT_EQ(left(0, 0.0), (std::set{1}));
}

// Of 0.4 and 0.3 the first one is 0.57.
TEST(Draw, TopPIsAShareOfWhatTopKLeft) {
  EXPECT_EQ(left(2, 0.5), (std::set{1}));
  EXPECT_EQ(left(2, 0.6), (std::set{1, 3}));
  EXPECT_EQ(left(3, 0.75), (std::set{1, 3}));  // 0.44 and 0.33
  EXPECT_EQ(left(3, 0.8), (std::set{0, 1, 3}));
}

TEST(Draw, KeepsTheShares) {
  std::vector<double> const logits{std::log(0.2), std::log(0.4), std::log(0.1), std::log(0.3)};
  SampleOptions o;
  o.top_k = 3;
  o.top_p = 0.7;  // leaves 0.4 and 0.3
  int first = 0;
  for (int i = 1; i <= 7000; ++i) first += p3d::engine::draw(logits, o, i / 7000.0) == 1 ? 1 : 0;
  EXPECT_NEAR(first, 4000, 2);
}

}  // namespace
