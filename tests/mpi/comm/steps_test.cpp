// SPDX-License-Identifier: Apache-2.0
// The algorithms as data, without MPI: all ranks of a group played by one process, exchange by exchange.
#include <comm/message_steps.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace p3d::comm::detail;

namespace {

/// A buffer's contents: which ranks have been added, in which order.
using Sum = std::string;

struct Group {
  std::vector<std::vector<Step>> steps;
  std::vector<Sum> buffers;             ///< the first part of each
  std::vector<std::vector<Sum>> parts;  ///< all parts, by rank
  std::vector<int> sent_parts;          ///< by rank
  std::vector<std::size_t> at;
  std::vector<bool> sent;
  std::map<std::pair<int, int>, std::vector<std::vector<Sum>>> messages;  ///< by (from, to), in order

  explicit Group(int p, std::vector<Step> (*make)(int, int) = tree_steps, int num_parts = 1)
      : sent_parts(static_cast<std::size_t>(p), 0) {
    for (int r = 0; r < p; ++r) {
      steps.push_back(make(r, p));
      parts.emplace_back(static_cast<std::size_t>(num_parts), Sum(1, static_cast<char>('a' + r)));
    }
    at.assign(steps.size(), 0);
    sent.assign(steps.size(), false);
  }

  /// One exchange further on one rank, if its message is there.
  bool move(int r) {
    auto const i = static_cast<std::size_t>(r);
    if (at[i] == steps[i].size()) return false;
    auto const& step = steps[i][at[i]];
    bool moved = false;
    if (step.send_to >= 0 && !sent[i]) {
      auto const begin = parts[i].begin();
      messages[{r, step.send_to}].emplace_back(begin + step.sends.begin, begin + step.sends.end);
      sent_parts[i] += step.sends.end - step.sends.begin;
      moved = sent[i] = true;
    }
    if (step.receive_from >= 0) {
      auto& queue = messages[{step.receive_from, r}];
      if (queue.empty()) return moved;
      auto const value = queue.front();
      queue.erase(queue.begin());
      EXPECT_EQ(static_cast<int>(value.size()), step.receives.end - step.receives.begin);
      for (std::size_t k = 0; k < value.size(); ++k) {
        auto& own = parts[i].at(static_cast<std::size_t>(step.receives.begin) + k);
        own = !step.adds ? value[k] : step.first ? "(" + value[k] + own + ")" : "(" + own + value[k] + ")";
      }
    }
    sent[i] = false;
    ++at[i];
    return true;
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(steps.size()); ++r) moved = move(r) || moved;
    }
    for (auto const& of_rank : parts) buffers.push_back(of_rank.front());
  }
};

std::string letters(Sum const& sum) {
  std::string out;
  for (char const c : sum) {
    if (c != '(' && c != ')') out += c;
  }
  return out;
}

TEST(TreeSteps, EveryRankOnce) {
  for (int p = 1; p <= 17; ++p) {
    Group group(p);
    group.run();
    for (int r = 0; r < p; ++r) {
      auto const i = static_cast<std::size_t>(r);
      EXPECT_EQ(group.at[i], group.steps[i].size()) << "rank " << r << " of " << p << " is stuck";
      EXPECT_EQ(group.buffers[i], group.buffers[0]) << "rank " << r << " of " << p;
    }
    auto const text = letters(group.buffers[0]);
    EXPECT_EQ(text.size(), static_cast<std::size_t>(p));
    EXPECT_EQ(std::set<char>(text.begin(), text.end()).size(), text.size()) << "a rank twice in " << text;
    for (auto const& [way, queue] : group.messages) EXPECT_TRUE(queue.empty()) << way.first << " to " << way.second;
  }
}

TEST(TreeSteps, AddPairsAndPairsOfPairs) {
  Group eight(8);
  eight.run();
  EXPECT_EQ(eight.buffers[5], "(((ab)(cd))((ef)(gh)))");
  Group six(6);
  six.run();
  EXPECT_EQ(six.buffers[3], "(((ab)(cd))(ef))");
}

// Every part is added in the tree's order, and each rank sends 2 (p-1)/p of the buffer in 2 log2(p) messages.
TEST(HalvingSteps, GiveTheTreesSumsWithTheLeastBytes) {
  for (int p = 1; p <= 32; p *= 2) {
    Group tree(p), halving(p, halving_steps, p);
    tree.run();
    halving.run();
    for (int r = 0; r < p; ++r) {
      auto const i = static_cast<std::size_t>(r);
      EXPECT_EQ(halving.at[i], halving.steps[i].size()) << "rank " << r << " of " << p << " is stuck";
      for (Sum const& part : halving.parts[i]) EXPECT_EQ(part, tree.buffers[0]) << "rank " << r << " of " << p;
      EXPECT_EQ(halving.sent_parts[i], 2 * (p - 1));
      EXPECT_EQ(1 << (halving.steps[i].size() / 2), p);
    }
    for (auto const& [way, queue] : halving.messages) EXPECT_TRUE(queue.empty()) << way.first << " to " << way.second;
  }
}

/// What the owners of all shares get, of groups of ranks that have added up among themselves: `summed(rank, share)`
/// says of which ranks a rank has the sum of a share.
template <class Summed>
void check_pairs(std::vector<Pairs> const& pairs, Summed&& summed) {
  int const p = static_cast<int>(pairs.size());
  for (int r = 0; r < p; ++r) {
    auto const& own = pairs[static_cast<std::size_t>(r)];
    EXPECT_EQ(own.shares, p);
    EXPECT_EQ(own.own_share, r);
    Sum sum;
    for (int i = 0; i <= static_cast<int>(own.givers.size()); ++i) {
      if (i == own.place) sum += summed(r, r);
      if (i == static_cast<int>(own.givers.size())) continue;
      int const giver = own.givers[static_cast<std::size_t>(i)];
      sum += summed(giver, r);
      int sends = 0;
      for (auto const& owner : pairs[static_cast<std::size_t>(giver)].owners)
        sends += owner.rank == r && owner.share == r ? 1 : 0;
      EXPECT_EQ(sends, 1) << "rank " << giver << " to rank " << r << " of " << p;
    }
    EXPECT_EQ(std::set<char>(sum.begin(), sum.end()).size(), static_cast<std::size_t>(p)) << sum;
    EXPECT_EQ(sum.size(), static_cast<std::size_t>(p)) << sum;
    // Nobody sends what is not awaited.
    for (auto const& owner : own.owners) {
      auto const& givers = pairs[static_cast<std::size_t>(owner.rank)].givers;
      EXPECT_EQ(std::count(givers.begin(), givers.end(), r), 1) << "rank " << r << " to rank " << owner.rank;
    }
  }
}

TEST(Pairs, AllWithAllInTheOrderOfRanks) {
  for (int p = 1; p <= 9; ++p) {
    std::vector<Pairs> pairs;
    for (int r = 0; r < p; ++r) {
      pairs.push_back(all_pairs(r, p));
      for (int s = 1; s < p; ++s) EXPECT_EQ(pairs.back().owners[static_cast<std::size_t>(s - 1)].rank, (r + s) % p);
      auto order = pairs.back().givers;
      order.insert(order.begin() + pairs.back().place, r);
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    }
    check_pairs(pairs, [](int rank, int) { return Sum(1, static_cast<char>('a' + rank)); });
  }
}

TEST(Pairs, OfNodesWithDifferentNumbersOfRanks) {
  using Nodes = std::vector<std::vector<int>>;
  for (Nodes const& nodes : {Nodes{{0, 1}, {2, 3}}, Nodes{{0, 3, 4}, {1}, {2, 5}}, Nodes{{0}, {1}, {2}, {3}, {4}},
                             Nodes{{0, 1, 2, 3, 4}, {5, 6}}, Nodes{{0, 1, 2}}}) {
    std::map<int, std::size_t> node_of;
    int p = 0;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      for (int const r : nodes[n]) node_of[r] = n, ++p;
    }
    auto const summed = [&](int rank, int share) {
      auto const& ranks = nodes[node_of[rank]];
      auto const shares = node_shares(nodes, node_of[rank]);
      auto const& own = shares[static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin())];
      if (std::find(own.begin(), own.end(), share) == own.end()) return Sum();
      Sum sum;
      for (int const r : ranks) sum += static_cast<char>('a' + r);
      return sum;
    };
    std::vector<Pairs> pairs;
    for (int r = 0; r < p; ++r) {
      pairs.push_back(node_pairs(nodes, r));
      EXPECT_EQ(pairs.back().place, static_cast<int>(node_of[r]));
    }
    check_pairs(pairs, summed);
    for (std::size_t n = 0; n < nodes.size(); ++n) {  // every share has one place on every node
      std::multiset<int> all;
      for (auto const& shares : node_shares(nodes, n)) all.insert(shares.begin(), shares.end());
      for (int r = 0; r < p; ++r) EXPECT_EQ(all.count(r), 1u);
    }
  }
}

}  // namespace
