// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/layout/axes.hpp>

#include <gtest/gtest.h>

#include <set>

namespace {
using namespace p3d;
using namespace p3d::layout;
using Groups = std::vector<std::vector<int>>;

TEST(AxisSet, DifferenceIsTheGradientRuleOnBits) {
  AxisSet const both{Axis::dp, Axis::tp};
  EXPECT_EQ(both.minus({Axis::tp}), AxisSet{Axis::dp});
  EXPECT_EQ(AxisSet{Axis::dp}.minus({Axis::tp}), AxisSet{Axis::dp});
  EXPECT_TRUE(both.minus(both).empty());
  EXPECT_TRUE(both.has(Axis::tp));
  EXPECT_FALSE(both.has(Axis::pp));
}

constexpr char const* orders[] = {"tp-pp-dp", "tp-dp-pp", "pp-tp-dp", "pp-dp-tp", "dp-tp-pp", "dp-pp-tp"};

TEST(Order, EveryPermutation) {
  for (std::string const text : orders) {
    auto const o = parse_order(text);
    EXPECT_EQ(std::string(name(o[0])) + "-" + name(o[1]) + "-" + name(o[2]), text);
  }
}

TEST(Order, NamesEachAxisOnceOrNotAtAll) {
  EXPECT_EQ(parse_order("pp-tp"), (std::vector<Axis>{Axis::pp, Axis::tp}));
  for (auto const* wrong : {"", "tp-tp-dp", "tp-pp-dp-", "-tp", "tp,pp,dp", "TP-PP-DP", "tp-pp-xp"}) {
    EXPECT_THROW(parse_order(wrong), p3d::base::Error) << wrong;
  }
}

TEST(Order, MayLeaveOutOnlyAxesOfOneRank) {
  RankGrid const all({.tp = 2, .dp = 3}, parse_order("tp-pp-dp")), some({.tp = 2, .dp = 3}, parse_order("tp-dp"));
  for (int r = 0; r < 6; ++r) EXPECT_EQ(all.coordinates(r), some.coordinates(r));
  EXPECT_THROW(RankGrid({.tp = 2, .dp = 3}, parse_order("tp-pp")), p3d::base::Error);
}

TEST(RankGrid, RoundTripsForEveryOrder) {
  for (auto const* order : orders) {
    for (int dp = 1; dp <= 3; ++dp) {
      for (int tp = 1; tp <= 4; ++tp) {
        for (int pp = 1; pp <= 3; ++pp) {
          RankGrid const grid({.tp = tp, .pp = pp, .dp = dp}, parse_order(order));
          std::set<std::vector<int>> seen;
          for (int r = 0; r < grid.num_ranks(); ++r) {
            auto const c = grid.coordinates(r);
            EXPECT_EQ(grid.rank(c), r);
            for (auto a : all_axes) {
              EXPECT_GE(c[a], 0);
              EXPECT_LT(c[a], grid.sizes()[a]);
            }
            seen.insert({c.dp, c.tp, c.pp});
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(dp * tp * pp)) << order;
        }
      }
    }
  }
}

TEST(RankGrid, FirstAxisOfTheOrderHasNeighbouringRanks) {
  for (auto const* text : orders) {
    auto const order = parse_order(text);
    RankGrid const grid({.tp = 3, .pp = 4, .dp = 2}, order);
    auto stride = [&](Axis a) {
      auto const g = grid.group(a, 0);
      return g[1] - g[0];
    };
    EXPECT_EQ(stride(order[0]), 1) << text;
    EXPECT_EQ(stride(order[1]), grid.sizes()[order[0]]) << text;
    EXPECT_EQ(stride(order[2]), grid.sizes()[order[0]] * grid.sizes()[order[1]]) << text;
  }
}

// The published table for 8 ranks, 2 x 2 x 2, model (tensor) parallelism fastest, then pipeline, data slowest.
TEST(RankGrid, EightRanksTwoByTwoByTwo) {
  RankGrid const grid({.tp = 2, .pp = 2, .dp = 2}, parse_order("tp-pp-dp"));
  EXPECT_EQ(grid.groups(Axis::tp), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(grid.groups(Axis::pp), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(grid.groups(Axis::dp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(RankGrid, GroupsPartitionTheRanks) {
  RankGrid const grid({.tp = 2, .pp = 4, .dp = 3}, parse_order("dp-pp-tp"));
  for (auto a : all_axes) {
    std::set<int> seen;
    int previous_first = -1;
    for (auto const& g : grid.groups(a)) {
      ASSERT_EQ(g.size(), static_cast<std::size_t>(grid.sizes()[a]));
      EXPECT_GT(g.front(), previous_first);
      previous_first = g.front();
      for (int i = 0; i < static_cast<int>(g.size()); ++i) {
        EXPECT_EQ(grid.coordinates(g[static_cast<std::size_t>(i)])[a], i);
        EXPECT_EQ(grid.group(a, g[static_cast<std::size_t>(i)]), g);
        EXPECT_TRUE(seen.insert(g[static_cast<std::size_t>(i)]).second);
      }
    }
    EXPECT_EQ(seen.size(), 24u);
  }
}

TEST(PaddedShard, PiecesAreEqualAndCoverTheWhole) {
  for (std::int64_t size : {1, 7, 12, 13, 50257}) {
    for (int parts = 1; parts <= 8; ++parts) {
      std::int64_t next = 0;
      for (int p = 0; p < parts; ++p) {
        auto const r = padded_shard(size, parts, p);
        EXPECT_EQ(r.begin, next);
        EXPECT_EQ(r.size(), padded_shard(size, parts, 0).size());
        next = r.end;
      }
      EXPECT_GE(next, size);
      EXPECT_LT(next - size, parts);
    }
  }
}

TEST(EvenShare, TilesWithPiecesThatDifferByAtMostOne) {
  for (std::int64_t size :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, std::int64_t{1} << 60}) {
    for (int parts : {1, 2, 3, 7, 1000}) {
      std::int64_t next = 0;
      for (int p = 0; p < parts; ++p) {
        auto const r = even_share(size, parts, p);
        EXPECT_EQ(r.begin, next);
        EXPECT_GE(r.size(), size / parts);
        EXPECT_LE(r.size(), (size + parts - 1) / parts);
        next = r.end;
      }
      EXPECT_EQ(next, size);
    }
  }
  EXPECT_EQ(even_share(7, 2, 0), (Range{0, 3}));
}

}  // namespace
