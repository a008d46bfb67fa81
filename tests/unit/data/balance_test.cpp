// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/balance.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace {
using namespace p3d::data;
using Numbers = std::vector<std::int64_t>;

TEST(Balance, WorkOfDocuments) {
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 0, 0, 0}), 15);
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 2, 3, 3}), 3 + 1 + 3);
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 0, 0, 0}, 2), 1 + 2 + 2 + 2 + 2);
  EXPECT_EQ(document_work({}), 0);
}

TEST(Balance, ClosedForms) {
  EXPECT_EQ(balance_microbatches(Numbers{5, 5, 5, 5, 5, 5}, 2), (Numbers{0, 2, 4, 1, 3, 5}));  // equal: in turn
  // 1 to 2n for n replicas: k with 2n + 1 - k.
  EXPECT_EQ(balance_microbatches(Numbers{1, 2, 3, 4, 5, 6}, 3), (Numbers{0, 5, 1, 4, 2, 3}));
  // Room: the long one still gets its equal number, the last ones.
  EXPECT_EQ(balance_microbatches(Numbers{1, 100, 1, 1, 1, 1}, 2), (Numbers{1, 4, 5, 0, 2, 3}));
  EXPECT_EQ(balance_microbatches(Numbers{3, 9, 1}, 1), (Numbers{0, 1, 2}));
  EXPECT_EQ(balance_microbatches(Numbers{3, 9, 1}, 3), (Numbers{1, 0, 2}));
}

// The gap between two replicas is at most the largest work of one microbatch, for any work: a full replica took the
// least each time until it was full, and what is left over is smaller.
TEST(Balance, EveryMicrobatchOnceAndNearlyEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    auto const replicas = 1 + static_cast<std::int64_t>(random() % 8),
               each = 1 + static_cast<std::int64_t>(random() % 9);
    Numbers work(static_cast<std::size_t>(replicas * each));
    for (auto& w : work) w = random() % 1000;
    auto const order = balance_microbatches(work, replicas);
    EXPECT_EQ(order, balance_microbatches(work, replicas));
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    Numbers sums;
    for (std::size_t k = 0; k < order.size(); ++k) {
      ASSERT_EQ(sorted[k], static_cast<std::int64_t>(k));
      if (k % static_cast<std::size_t>(each) == 0) sums.push_back(0);
      sums.back() += work[static_cast<std::size_t>(order[k])];
    }
    auto const [low, high] = std::minmax_element(sums.begin(), sums.end());
    ASSERT_LE(*high - *low, *std::max_element(work.begin(), work.end()));
  }
}

}  // namespace
