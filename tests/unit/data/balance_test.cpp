// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/balance.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace {
using namespace p3d::data;
using Numbers = std::vector<std::int64_t>;
using Work = std::vector<double>;

TEST(Balance, WorkOfDocuments) {
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 0, 0, 0}), 15);
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 2, 3, 3}), 3 + 1 + 3);
  EXPECT_EQ(document_work(std::vector<int>{0, 0, 0, 0, 0}, 2), 1 + 2 + 2 + 2 + 2);
  EXPECT_EQ(document_work({}), 0);
}

TEST(Balance, ClosedForms) {
  EXPECT_EQ(balance_microbatches(Work{5, 5, 5, 5, 5, 5}, 2), (Numbers{0, 2, 4, 1, 3, 5}));  // equal: in turn
  // 1 to 2n for n replicas: k with 2n + 1 - k.
  EXPECT_EQ(balance_microbatches(Work{1, 2, 3, 4, 5, 6}, 3), (Numbers{0, 5, 1, 4, 2, 3}));
  // Room: the long one still gets its equal number, the last ones.
  EXPECT_EQ(balance_microbatches(Work{1, 100, 1, 1, 1, 1}, 2), (Numbers{1, 4, 5, 0, 2, 3}));
  EXPECT_EQ(balance_microbatches(Work{3, 9, 1}, 1), (Numbers{0, 1, 2}));
  EXPECT_EQ(balance_microbatches(Work{3, 9, 1}, 3), (Numbers{1, 0, 2}));
}

// Sums of FLOPs exceed 2^63: 4e18 each, of which a replica has four. The small one belongs to the replica with the
// three large ones, whatever they are counted in.
TEST(Balance, WorkBeyondSixtyFourBits) {
  EXPECT_EQ(balance_microbatches(Work{4e18, 4e18, 4e18, 4e18, 4e18, 4e18, 4e18, 1e18}, 2),
            (Numbers{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(balance_microbatches(Work{1e18, 4e18, 4e18, 5e18, 4e18, 9e18}, 2), (Numbers{0, 2, 5, 1, 3, 4}));
}

// The gap between two replicas is at most the largest work of one microbatch, for any work: a full replica took the
// least each time until it was full, and what is left over is smaller.
TEST(Balance, EveryMicrobatchOnceAndNearlyEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    auto const replicas = 1 + static_cast<std::int64_t>(random() % 8),
               each = 1 + static_cast<std::int64_t>(random() % 9);
    Work work(static_cast<std::size_t>(replicas * each));
    for (auto& w : work) w = static_cast<double>(random() % 1000);
    auto const order = balance_microbatches(work, replicas);
    EXPECT_EQ(order, balance_microbatches(work, replicas));
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    Work sums;
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
