// SPDX-License-Identifier: Apache-2.0
// Statistics of predictions, against numbers worked out by hand.
#include <p3d/plan/accuracy.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace {
using namespace p3d;
using plan::Graded;

TEST(Accuracy, ErrorsOfFourRows) {
  // Errors +10 %, -20 %, 0 and +50 %.
  std::array const rows{Graded{"a", 10, 11, 9, 12, 0}, Graded{"a", 10, 8, 7, 9, 0}, Graded{"b", 4, 4, 4, 4, 0},
                        Graded{"b", 2, 3, 2, 4, 0}};
  auto const a = plan::accuracy(rows);
  EXPECT_EQ(a.rows, 4);
  EXPECT_NEAR(a.mean, 0.2, 1e-12);
  EXPECT_NEAR(a.median, 0.15, 1e-12);
  EXPECT_NEAR(a.percentile, 0.2 + 0.7 * 0.3, 1e-12);  // between the third and the fourth: place 2.7
  EXPECT_NEAR(a.worst, 0.5, 1e-12);
  EXPECT_NEAR(a.bias, 0.1, 1e-12);
  EXPECT_NEAR(a.within, 0.25, 1e-12) << "10 % in floating point is a little more than a tenth";
  EXPECT_NEAR(a.coverage, 0.75, 1e-12);
  EXPECT_EQ(plan::accuracy({}).rows, 0);
}

TEST(Accuracy, TauCountsPairs) {
  std::array const a{1.0, 2.0, 3.0, 4.0}, same{10.0, 20.0, 30.0, 40.0}, back{4.0, 3.0, 2.0, 1.0},
      one_swap{1.0, 3.0, 2.0, 4.0}, tie{1.0, 2.0, 2.0, 3.0}, constant{5.0, 5.0, 5.0, 5.0};
  EXPECT_DOUBLE_EQ(plan::kendall_tau(a, same), 1);
  EXPECT_DOUBLE_EQ(plan::kendall_tau(a, back), -1);
  EXPECT_DOUBLE_EQ(plan::kendall_tau(a, one_swap), 4.0 / 6);
  EXPECT_DOUBLE_EQ(plan::kendall_tau(a, tie), 5 / std::sqrt(6.0 * 5.0));
  EXPECT_DOUBLE_EQ(plan::kendall_tau(a, constant), 0);
}

TEST(Accuracy, RegretIsOfTheChosenLayout) {
  // The best measured layout, 10 s, is predicted fourth best; the one predicted best takes 12 s.
  std::array const rows{Graded{"a", 10, 25, 0, 0, 0}, Graded{"b", 1, 1, 0, 0, 0},   Graded{"a", 12, 20, 0, 0, 0},
                        Graded{"a", 11, 24, 0, 0, 0}, Graded{"a", 30, 21, 0, 0, 0}, Graded{"b", 2, 2, 0, 0, 0}};
  auto const all = plan::choices(rows);
  ASSERT_EQ(all.size(), 1U) << "two layouts are no choice";
  EXPECT_EQ(all[0].problem, "a");
  EXPECT_EQ(all[0].layouts, 4);
  EXPECT_NEAR(all[0].regret, 0.2, 1e-12);
  EXPECT_NEAR(all[0].regret_of_three, 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(all[0].tau, -4.0 / 6) << "one pair of six agrees";
}

TEST(Accuracy, BaselinesKnowTheOtherRows) {
  // Of "a" the other row is 1 and 2: errors 100 % and 50 %. "b" takes the median of the others, 1.5: 62.5 %.
  std::array const rows{Graded{"a", 1, 1, 0, 0, 100}, Graded{"a", 2, 1, 0, 0, 100}, Graded{"b", 4, 1, 0, 0, 100}};
  auto const b = plan::baselines(rows);
  EXPECT_NEAR(b.median, (1 + 0.5 + 0.625) / 3, 1e-12);
  EXPECT_NEAR(b.operations, (1 + 0 + 0.5) / 3, 1e-12) << "the median rate is 50 a second: each row takes 2 s";
}

}  // namespace
