// SPDX-License-Identifier: Apache-2.0
// Which tokens of a growing text the model reads next.

#include "engine/text_batch.hpp"

#include <gtest/gtest.h>

namespace p3d::engine {
namespace {

/// The positions that a text reads now.
std::vector<int> read(GrowingText& text) {
  model::DecodedRows rows;
  text.read(5, rows);
  EXPECT_EQ(rows.texts, std::vector<int>(rows.positions.size(), 5));
  return rows.positions;
}

TEST(GrowingText, ReadsWhatIsNew) {
  GrowingText text({7, 8, 9}, 10);
  EXPECT_FALSE(text.continues());
  EXPECT_EQ(read(text), (std::vector<int>{0, 1, 2}));
  text.add(4);
  EXPECT_TRUE(text.continues());
  EXPECT_EQ(read(text), (std::vector<int>{3}));
}

TEST(GrowingText, ForgetsItsOlderHalfAtTheCapacity) {
  GrowingText text({7, 8, 9}, 4);
  read(text);
  text.add(1);
  EXPECT_EQ(read(text), (std::vector<int>{3}));
  text.add(2);
  EXPECT_FALSE(text.continues());
  EXPECT_EQ(read(text), (std::vector<int>{0, 1}));
}

TEST(GrowingText, IsReadOnceMoreWhereItPassesTheOriginalLength) {
  GrowingText text({7, 8, 9}, 10, 4);
  read(text);
  text.add(1);
  EXPECT_EQ(read(text), (std::vector<int>{3})) << "as long as the original";
  text.add(2);
  EXPECT_FALSE(text.continues());
  EXPECT_EQ(read(text), (std::vector<int>{0, 1, 2, 3, 4}));
  text.add(3);
  EXPECT_EQ(read(text), (std::vector<int>{5}));
  GrowingText longer({1, 2, 3, 4, 5, 6}, 10, 4);
  EXPECT_EQ(read(longer).size(), 6u);
  longer.add(7);
  EXPECT_EQ(read(longer), (std::vector<int>{6}));
}

TEST(GrowingText, IsShortAgainWithoutItsOlderHalf) {
  GrowingText text({1, 2, 3, 4, 5, 6}, 6, 4);
  read(text);
  text.add(7);
  EXPECT_EQ(read(text), (std::vector<int>{0, 1, 2})) << "of three tokens";
  text.add(8);
  EXPECT_EQ(read(text), (std::vector<int>{3}));
  text.add(9);
  EXPECT_EQ(read(text), (std::vector<int>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace p3d::engine
