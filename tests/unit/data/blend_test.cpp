// SPDX-License-Identifier: Apache-2.0
#include "data/blend.hpp"

#include <p3d/config/weights.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace {
using namespace p3d;
using namespace p3d::data;
using Whole = std::vector<std::int64_t>;

TEST(Weights, AreTheSmallestWholeNumbers) {
  EXPECT_EQ(config::whole_weights({0.3, 0.7}), (Whole{3, 7}));
  EXPECT_EQ(config::whole_weights({2.0, 0.5, 0.25}), (Whole{8, 2, 1}));
  EXPECT_EQ(config::whole_weights({1e6, 1e6}), (Whole{1, 1}));
  EXPECT_EQ(config::whole_weights({1e-7, 3e-7}), (Whole{1, 3}));
  EXPECT_EQ(config::whole_weights({300000000.0, 1e22}), std::nullopt);
  EXPECT_EQ(config::whole_weights({1.0, 4194303.0}), (Whole{1, 4194303}));
  EXPECT_EQ(config::whole_weights({1.0, 4194304.0}), std::nullopt);
  EXPECT_EQ(config::whole_weights({1.0 / 3.0, 1.0}), std::nullopt);
  EXPECT_EQ(config::whole_weights({1e18, 1.0}), std::nullopt);
}

/// Every prefix of one period and a half: each source less than one sample from its share, numbers without gaps.
void expect_even(Whole const& weights) {
  EvenBlend const blend(weights);
  auto const sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  auto const n = std::min<std::int64_t>(sum + sum / 2 + 2, 20000);
  Whole taken(weights.size(), 0);
  for (std::int64_t i = 0; i < n; ++i) {
    auto const pick = blend.at(i);
    ASSERT_EQ(pick.number, taken[pick.source]++);
    for (std::size_t k = 0; k < weights.size(); ++k) {
      auto const off = std::abs(taken[k] * sum - weights[k] * (i + 1));  // times the sum
      ASSERT_LE(off * (2 * std::ssize(weights) - 2), sum * (2 * std::ssize(weights) - 3))
          << "source " << k << " of " << weights.size() << " after " << i + 1 << " samples";
    }
  }
}

TEST(EvenBlend, EveryPrefixIsWithinOneSampleOfEveryShare) {
  for (std::int64_t a = 1; a <= 12; ++a) {
    for (std::int64_t b = 1; b <= 12; ++b) {
      expect_even({a, b});
      for (std::int64_t c = 1; c <= 12; c += 3) expect_even({a, b, c});
    }
  }
  std::mt19937 random(5);
  for (std::size_t k : {2u, 3u, 4u, 5u, 7u, 20u, 64u}) {
    for (int repeat = 0; repeat < 8; ++repeat) {
      Whole weights(k);
      // Equal ones, and very unequal ones.
      for (auto& w : weights)
        w = 1 + static_cast<std::int64_t>(random() % (repeat % 2 == 0 ? 50 : 3000)) * (random() % 4 == 0 ? 1 : 0);
      expect_even(weights);
    }
  }
  expect_even({1, 4194303});
}

TEST(EvenBlend, AnySampleIsThatOfTheWalk) {
  Whole const weights{2713, 41, 999983, 77000, 1};
  EvenBlend const walk(weights);
  std::vector<Pick> all;
  for (std::int64_t i = 0; i < 1'200'000; ++i) all.push_back(walk.at(i));
  EvenBlend const blend(weights);
  std::mt19937 random(6);
  for (int k = 0; k < 300; ++k) {
    auto const i = random() % all.size();
    ASSERT_EQ(blend.at(static_cast<std::int64_t>(i)), all[i]) << i;
  }
  // So many periods later every source has its weight more of each.
  auto const sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  auto const late = blend.at(5 + sum * 1'000'000);
  EXPECT_EQ(late.source, all[5].source);
  EXPECT_EQ(late.number, all[5].number + 1'000'000 * weights[late.source]);
}

TEST(MegatronBlend, AnySampleIsThatOfTheWalkWhenPlacesGetSparse) {
  MegatronBlend const walk({0.5, 0.2, 0.3});
  std::int64_t const n = 4096 * 1024 + 5000;  // places are thinned out once
  std::vector<Pick> some;
  for (std::int64_t i = 0; i < n; ++i) {
    auto const pick = walk.at(i);
    if (i % 99991 == 0) some.push_back(pick);
  }
  for (std::size_t k = some.size(); k-- > 0;) ASSERT_EQ(walk.at(static_cast<std::int64_t>(k) * 99991), some[k]) << k;
}

}  // namespace
