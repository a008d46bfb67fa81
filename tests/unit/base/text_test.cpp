// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/hash.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace p3d::base;

TEST(Nearest, FindsTheUsualMistakes) {
  std::vector<std::string> const known{"hidden", "layers", "heads", "kv_heads", "weight_decay", "lr"};
  EXPECT_EQ(nearest("hiden", known), "hidden");    // left out
  EXPECT_EQ(nearest("layerss", known), "layers");  // one too many
  EXPECT_EQ(nearest("haeds", known), "heads");     // two swapped
  EXPECT_EQ(nearest("weigth_decy", known), "weight_decay");
  EXPECT_EQ(nearest("heads", known), "heads");
}

TEST(Nearest, SaysNothingWhenNothingIsNear) {
  std::vector<std::string> const known{"hidden", "layers"};
  EXPECT_EQ(nearest("optimizer", known), "");
  EXPECT_EQ(nearest("abc", known), "");
  EXPECT_EQ(nearest("hidden", {}), "");
}

TEST(Nearest, FindsTheWordThatBeginsSo) {
  EXPECT_EQ(nearest("optim", {"model", "optimizer"}), "optimizer");
  EXPECT_EQ(nearest("opti", {"optimizer", "optional_name"}), "");  // which one?
  EXPECT_EQ(nearest("opt", {"optimizer"}), "");                    // too short
}

TEST(Nearest, AllowsTwoEditsOrAThirdOfTheWord) {
  EXPECT_EQ(nearest("abcd", {"abxy"}), "abxy");                          // two edits in four letters
  EXPECT_EQ(nearest("abcd", {"axyz"}), "");                              // three edits in four letters
  EXPECT_EQ(nearest("abcdefghijkl", {"abcdefghwxyz"}), "abcdefghwxyz");  // four in twelve
  EXPECT_EQ(nearest("abcdefghijkl", {"abcdefgvwxyz"}), "");              // five in twelve
}

TEST(Nearest, SwappedNeighboursAreOneEdit) {
  // Plain Levenshtein would call both candidates equally far (2) and keep the first.
  EXPECT_EQ(nearest("ab", {"cd", "ba"}), "ba");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(1000), "1K");
  EXPECT_EQ(human_count(124439808), "124.4M");
  EXPECT_EQ(human_count(7e9), "7B");
  EXPECT_EQ(human_count(1.5e12), "1.5T");
  EXPECT_EQ(human_count(-2500), "-2.5K");
  EXPECT_EQ(human_count(8.082e19), "80.82E");
  EXPECT_EQ(human_count(3e23), "300Z");
}

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(3.0 * 1024 * 1024 * 1024), "3.00 GiB");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0.85), "850 ms");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(250), "4 min 10 s");
  EXPECT_EQ(human_seconds(2 * 3600 + 5 * 60), "2 h 05 min");
}

// A value just below a unit's border must not print as a full unit of the smaller kind ("1000K", "60.0 s").
TEST(Human, BordersRoundIntoTheNextUnit) {
  EXPECT_EQ(human_count(999999), "1M");
  EXPECT_EQ(human_bytes(1024.0 * 1024.0 - 1.0), "1.00 MiB");
  EXPECT_EQ(human_seconds(0.9999), "1.0 s");
  EXPECT_EQ(human_seconds(59.97), "1 min 00 s");
  EXPECT_EQ(human_seconds(3599.8), "1 h 00 min");
}

TEST(Counted, TakesThePluralThatFits) {
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(8, "microbatch"), "8 microbatches");
}

TEST(Join, PutsTheSeparatorBetween) {
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(join({"a"}), "a");
  EXPECT_EQ(join({"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(join({"a", "b"}, " x "), "a x b");
  EXPECT_EQ(join_last({"a", "b", "c"}, ", ", " or "), "a, b or c");
  EXPECT_EQ(join_last({"a"}, ", ", " or "), "a");
  EXPECT_EQ(join_last({}, ", ", " or "), "");
}

TEST(Text, NanHasNoSign) {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (double const x : {nan, -nan}) EXPECT_EQ(fmt::format("{:.4f}", without_sign_of_nan(x)), "nan");
  EXPECT_EQ(without_sign_of_nan(-1.5), -1.5);
  EXPECT_TRUE(std::signbit(without_sign_of_nan(-0.0)));
}

TEST(Text, RangesOfNumbers) {
  EXPECT_EQ(number_ranges({}), "");
  EXPECT_EQ(number_ranges({7}), "7");
  EXPECT_EQ(number_ranges({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(number_ranges({0, 1, 8}, " to ", ", "), "0 to 1, 8");
}

TEST(Hash, IsFnv1a) {  // the values of the authors' own list
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8U);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}
