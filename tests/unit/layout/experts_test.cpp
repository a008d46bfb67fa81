// SPDX-License-Identifier: Apache-2.0
// The exchange of rows between experts, played on one process: every row comes to its expert once on each rank of etp.

#include <p3d/layout/experts.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace {
using namespace p3d;
using namespace p3d::layout;

using Row = std::tuple<int, std::int64_t>;  ///< sender, and its number there

ExpertGroup make_group(int experts, int ep, int etp, bool ep_first) {
  ExpertGroup g{.experts = experts, .ep = ep, .etp = etp, .ep_of = {}};
  for (int r = 0; r < ep * etp; ++r) g.ep_of.push_back(ep_first ? r % ep : r / etp);
  return g;
}

/// The expert of row `i` of a rank.
std::int64_t expert_of(std::vector<std::int64_t> const& counts, ExpertGroup const& g, int rank, std::int64_t i) {
  for (int e = 0; e < g.experts; ++e) {
    i -= counts[static_cast<std::size_t>(rank * g.experts + e)];
    if (i < 0) return e;
  }
  return -1;
}

void play(ExpertGroup const& g, std::vector<std::int64_t> const& counts, std::int64_t most) {
  std::vector<ExpertDispatch> ranks;
  for (int r = 0; r < g.size(); ++r) ranks.emplace_back(g, r, counts, most);
  std::map<std::tuple<int, Row>, int> seen;  // by receiver and row
  for (int pass = 0; pass < ranks[0].passes(); ++pass) {
    for (int to = 0; to < g.size(); ++to) {
      auto const& d = ranks[static_cast<std::size_t>(to)];
      ASSERT_EQ(d.passes(), ranks[0].passes());
      ASSERT_LE(d.rows(pass), most);
      std::vector<Row> received;
      for (int from = 0; from < g.size(); ++from) {
        auto const sent = ranks[static_cast<std::size_t>(from)].sent_to(pass, to);
        auto const got = d.received_from(pass, from);
        ASSERT_EQ(got.begin, std::ssize(received));
        ASSERT_EQ(got.size(), sent.size());
        for (auto i = sent.begin; i < sent.end; ++i) received.emplace_back(from, i);
      }
      ASSERT_EQ(std::ssize(received), d.rows(pass));
      auto const order = d.received_order(pass);
      auto const offsets = d.offsets(pass);
      ASSERT_EQ(std::ssize(order), d.rows(pass));
      ASSERT_EQ(offsets.back(), d.rows(pass));
      for (int e = 0; e < g.local_experts(); ++e) {
        Row last{-1, -1};
        for (auto i = offsets[static_cast<std::size_t>(e)]; i < offsets[static_cast<std::size_t>(e) + 1]; ++i) {
          auto const row = received[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
          EXPECT_EQ(expert_of(counts, g, std::get<0>(row), std::get<1>(row)), g.experts_of(to).begin + e);
          EXPECT_LT(last, row) << "in the order of sender and row";
          last = row;
          ++seen[{to, row}];
        }
      }
    }
  }
  std::int64_t all = 0;
  for (auto const n : counts) all += n;
  EXPECT_EQ(std::ssize(seen), all * g.etp);
  for (auto const& [where, times] : seen) EXPECT_EQ(times, 1);
}

TEST(Experts, EveryRowComesOnceToEveryRankOfItsExpert) {
  std::mt19937 random(5);
  for (int k = 0; k < 600 && !testing::Test::HasFailure(); ++k) {
    int const ep = 1 << random() % 3, etp = 1 + static_cast<int>(random() % 3);
    auto const g = make_group(ep * (1 + static_cast<int>(random() % 4)), ep, etp, random() % 2 == 0);
    std::vector<std::int64_t> counts;
    int const kind = static_cast<int>(random() % 3);  // any, all rows for one expert, few
    int const busy = static_cast<int>(random() % static_cast<unsigned>(g.experts));
    for (int r = 0; r < g.size(); ++r)
      for (int e = 0; e < g.experts; ++e)
        counts.push_back(kind == 1 ? (e == busy ? 40 : 0) : static_cast<std::int64_t>(random() % (kind == 0 ? 12 : 2)));
    auto const most = g.size() + static_cast<std::int64_t>(random() % 60);
    SCOPED_TRACE(fmt::format("ep {}, etp {}, {} experts, room {}", ep, etp, g.experts, most));
    play(g, counts, most);
  }
}

TEST(Experts, OnePassWhereThereIsRoom) {
  auto const g = make_group(4, 2, 1, false);
  ExpertDispatch const d(g, 0, {3, 1, 2, 2, 1, 3, 0, 4}, 8);
  EXPECT_EQ(d.passes(), 1);
  EXPECT_EQ(d.rows(0), 8);
  EXPECT_EQ(d.sent_to(0, 1), (Range{4, 8}));
  EXPECT_EQ(d.received_from(0, 1), (Range{4, 8}));
  EXPECT_EQ(d.offsets(0), (std::vector<std::int64_t>{0, 4, 8}));
  EXPECT_EQ(d.received_order(0), (std::vector<int>{0, 1, 2, 4, 3, 5, 6, 7}));
  EXPECT_EQ(ExpertDispatch(g, 0, {3, 1, 2, 2, 1, 3, 0, 4}, 7).passes(), 2);
}

TEST(Experts, GroupsAreThoseOfTheMesh) {
  PerAxis sizes;
  sizes.tp = 2, sizes.dp = 4, sizes.etp = 1, sizes.ep = 4, sizes.edp = 2;
  RankGrid const grid(sizes, parse_order("tp-cp-pp-dp"));
  std::vector<bool> in(8, false);
  for (int r : grid.group(AxisSet{Axis::etp, Axis::ep}, 0)) in[static_cast<std::size_t>(r)] = true;
  auto const g = expert_group(grid, 0, 8);
  EXPECT_EQ(g.size(), 4);
  EXPECT_EQ(std::count(in.begin(), in.end(), true), 4);
  EXPECT_EQ(g.ep_of, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
