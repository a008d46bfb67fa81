// SPDX-License-Identifier: Apache-2.0
// The algorithms as data, without MPI: all ranks of a group played by one process, exchange by exchange.
#include <comm/message_steps.hpp>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

using namespace p3d::comm::detail;

namespace {

/// A chunk's contents: which ranks have been added, in which order.
using Sum = std::string;

struct Group {
  std::vector<Steps> steps;
  std::vector<std::vector<Sum>> chunks;
  std::vector<std::size_t> at;
  std::vector<bool> sent;
  std::map<std::pair<int, int>, std::vector<std::pair<int, Sum>>> messages;  ///< by (from, to), in order
  int longest = 0;

  Group(int p, Steps (*make)(int, int)) {
    for (int r = 0; r < p; ++r) {
      steps.push_back(make(r, p));
      chunks.emplace_back(static_cast<std::size_t>(steps.back().chunks), Sum(1, static_cast<char>('a' + r)));
    }
    at.assign(steps.size(), 0);
    sent.assign(steps.size(), false);
  }

  /// One exchange further on one rank, if its message is there.
  bool move(int r) {
    auto const i = static_cast<std::size_t>(r);
    if (at[i] == steps[i].steps.size()) return false;
    auto const& step = steps[i].steps[at[i]];
    auto& own = chunks[i];
    bool moved = false;
    if (step.send_to >= 0 && !sent[i]) {
      messages[{r, step.send_to}].emplace_back(step.send_chunk, own[static_cast<std::size_t>(step.send_chunk)]);
      moved = sent[i] = true;
    }
    if (step.receive_from >= 0) {
      auto& queue = messages[{step.receive_from, r}];
      if (queue.empty()) return moved;
      auto const [chunk, value] = queue.front();
      queue.erase(queue.begin());
      EXPECT_EQ(chunk, step.receive_chunk) << "rank " << r << " step " << at[i];
      auto& place = own[static_cast<std::size_t>(chunk)];
      place = step.adds ? "(" + place + value + ")" : value;
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
  }
};

std::string letters(Sum const& sum) {
  std::string out;
  for (char const c : sum) {
    if (c != '(' && c != ')') out += c;
  }
  return out;
}

void check(Steps (*make)(int, int)) {
  for (int p = 1; p <= 17; ++p) {
    Group group(p, make);
    group.run();
    for (int r = 0; r < p; ++r) {
      auto const i = static_cast<std::size_t>(r);
      EXPECT_EQ(group.at[i], group.steps[i].steps.size()) << "rank " << r << " of " << p << " is stuck";
      EXPECT_EQ(group.chunks[i], group.chunks[0]) << "rank " << r << " of " << p;
    }
    for (auto const& sum : group.chunks[0]) {
      auto const text = letters(sum);
      EXPECT_EQ(text.size(), static_cast<std::size_t>(p));
      EXPECT_EQ(std::set<char>(text.begin(), text.end()).size(), text.size()) << "a rank twice in " << text;
    }
    for (auto const& [way, queue] : group.messages) EXPECT_TRUE(queue.empty()) << way.first << " to " << way.second;
  }
}

TEST(RingSteps, EveryChunkHasEveryRankOnce) { check(ring_steps); }
TEST(TreeSteps, EveryRankOnce) { check(tree_steps); }

TEST(RingSteps, AreTwoRoundsOfTheRing) {
  for (int p = 2; p <= 9; ++p) EXPECT_EQ(ring_steps(p - 1, p).steps.size(), static_cast<std::size_t>(2 * (p - 1)));
  Group four(4, ring_steps);
  four.run();
  EXPECT_EQ(letters(four.chunks[0][0]), "dcba");  // the last to add has its own number in front
  EXPECT_EQ(letters(four.chunks[0][1]), "adcb");
}

TEST(TreeSteps, AddPairsAndPairsOfPairs) {
  Group eight(8, tree_steps);
  eight.run();
  EXPECT_EQ(eight.chunks[5][0], "(((ab)(cd))((ef)(gh)))");
  Group six(6, tree_steps);
  six.run();
  EXPECT_EQ(six.chunks[3][0], "(((ab)(cd))(ef))");
}

}  // namespace
