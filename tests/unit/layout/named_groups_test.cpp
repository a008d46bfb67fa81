// SPDX-License-Identifier: Apache-2.0
// Groups by the names of Megatron Core, against groups written out by hand.
#include <p3d/layout/named_groups.hpp>

#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {
using namespace p3d;
using Ranks = std::vector<int>;

TEST(NamedGroups, SixteenRanksByHand) {
  // Rank = tp + 2 cp + 4 pp + 8 dp; the experts of a stage: etp fastest, then ep, then edp.
  auto const grid = layout::grid_of({.tp = 2, .cp = 2, .pp = 2, .etp = 1, .ep = 4}, 16);
  EXPECT_EQ(grid.sizes().dp, 2);
  EXPECT_EQ(grid.sizes().edp, 2);
  auto const group = [&](char const* name) { return grid.group(layout::group_axes(name), 5); };
  EXPECT_EQ(group("tp"), (Ranks{4, 5}));
  EXPECT_EQ(group("mp"), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(group("dp_cp"), (Ranks{5, 7, 13, 15}));
  EXPECT_EQ(group("tp_cp"), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(group("tp_dp"), (Ranks{4, 5, 12, 13}));
  EXPECT_EQ(group("tp_dp_cp"), (Ranks{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(group("ep"), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(group("ep_tp"), (Ranks{5}));
  EXPECT_EQ(group("ep_dp"), (Ranks{5, 13}));
  EXPECT_EQ(group("tp_ep_mp"), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(group("tp_ep_pp"), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(NamedGroups, AreRefusedWithWhatWouldWork) {
  auto const error = [](auto const& call) -> std::string {
    try {
      call();
    } catch (base::Error const& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error([] { layout::group_axes("model"); }).find("dp_cp"), std::string::npos);
  for (auto const& sizes : {layout::PerAxis{.tp = 3}, layout::PerAxis{.pp = 0}, layout::PerAxis{.tp = 1 << 30, .cp = 4},
                            layout::PerAxis{.tp = -2, .pp = -2}})
    EXPECT_NE(error([&] { layout::grid_of(sizes, 8); }).find("divides 8 ranks"), std::string::npos);
  EXPECT_NE(error([] { layout::grid_of({.pp = 2, .ep = 3}, 8); }).find("divides 4 ranks of a pipeline stage"),
            std::string::npos);
}

}  // namespace
