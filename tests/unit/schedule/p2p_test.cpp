// SPDX-License-Identifier: Apache-2.0
// Messages that start together. The rounds of programs of every shape are run by a machine that knows what an exchange
// with neighbours waits for and nothing of clocks; the proof of pairs is compared with a machine that starts pairs.

#include "programs.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/p2p.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace p3d;
using namespace p3d::schedule;
using p3d::test::draw;

namespace {

Execution with(P2p p2p) {
  auto out = test::as_executed;
  out.p2p = p2p;
  return out;
}

/// A message by its sender's name: (stage that sends, microbatch, kind).
using Name = std::tuple<int, int, bool>;
Name name(Action const& a) {
  bool const gradient = a.op == Op::send_gradient || a.op == Op::recv_gradient;
  return {is_send(a.op) ? a.stage : peer_stage(a), a.microbatch, gradient};
}

/// Runs a program rank by rank, in random order, until nobody can go on.
class Machine {
public:
  Machine(Program const& program, Rounds const* rounds) : p_(program), rounds_(rounds), ranks_(program.ranks.size()) {
    if (rounds) return;
    for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].same_call = same_call(p_, p_.ranks[r]);
  }

  /// True when all ranks come to their ends.
  bool run(std::mt19937& random) {
    for (int idle = 0; idle < 200 * static_cast<int>(ranks_.size());) {
      auto const r = static_cast<std::size_t>(draw(random, static_cast<int>(ranks_.size())));
      idle = one(r) ? 0 : idle + 1;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].next < p_.ranks[r].size() || (rounds_ && ranks_[r].round < rounds_->ranks[r].size())) return false;
    return true;
  }

private:
  struct Rank {
    std::size_t next = 0, round = 0;
    std::map<Name, std::size_t> started;                  ///< messages, and the round in which each started
    std::map<Name, Name> partner;                         ///< messages of one call
    std::map<std::pair<int, int>, std::set<Name>> sends;  ///< messages that leave a (stage, slot)
    std::map<Name, std::set<Name>> before;                ///< messages that must be over before a receive starts
    std::vector<int> same_call;
  };

  /// True when the message is over on a rank.
  bool over(std::size_t r, Name const& m) const {
    auto const& me = ranks_[r];
    auto const found = me.started.find(m);
    if (found == me.started.end()) {
      ADD_FAILURE() << "rank " << r << " waits for a message that it has not started";
      return false;
    }
    if (rounds_) {
      auto const p = ranks_.size();
      for (std::size_t other : {(r + 1) % p, (r + p - 1) % p}) {
        bool const around = (other + 1 == p && r == 0) || (r + 1 == p && other == 0);
        if (around && p > 2 && !rounds_->periodic) continue;
        if (ranks_[other].round <= found->second) return false;
      }
      return true;
    }
    auto const arrived = [&](Name const& of) {
      return std::count_if(ranks_.begin(), ranks_.end(), [&](Rank const& x) { return x.started.contains(of); }) == 2;
    };
    auto const partner = me.partner.find(m);
    return arrived(m) && (partner == me.partner.end() || arrived(partner->second));
  }
  /// True when nothing (of a kind) leaves a slot any more.
  bool free(std::size_t r, Action const& a, bool activations, bool gradients) const {
    auto const found = ranks_[r].sends.find({a.stage, a.slot});
    if (found == ranks_[r].sends.end()) return true;
    return std::all_of(found->second.begin(), found->second.end(),
                       [&](Name const& m) { return !(std::get<2>(m) ? gradients : activations) || over(r, m); });
  }
  bool buffer_is_free(std::size_t r, Action const& a) const {
    auto const& before = ranks_[r].before.at(name(a));
    return std::all_of(before.begin(), before.end(), [&](Name const& m) { return over(r, m); });
  }
  /// A rank has come to a message in its list.
  void reach(std::size_t r, Action const& a) {
    auto& me = ranks_[r];
    auto& sends = me.sends[{a.stage, a.slot}];
    auto& before = me.before[name(a)];
    before.clear();
    if (is_send(a.op)) sends.insert(name(a));
    for (auto const& m : sends)
      if (a.op == Op::recv_activation || (a.op == Op::recv_gradient && std::get<2>(m))) before.insert(m);
    if (a.op == Op::recv_activation) sends.clear();
  }

  bool one(std::size_t r) {
    auto& me = ranks_[r];
    auto const& list = p_.ranks[r];
    bool moved = false;
    while (rounds_ && me.round < rounds_->ranks[r].size()) {
      auto const& round = rounds_->ranks[r][me.round];
      if (round.from > me.next) break;
      bool const can = std::all_of(round.messages.begin(), round.messages.end(),
                                   [&](std::size_t i) { return buffer_is_free(r, list[i]); });
      if (!can && round.by <= me.next) return moved;
      if (!can) break;
      for (std::size_t i : round.messages) me.started[name(list[i])] = me.round;
      ++me.round;
      moved = true;
    }
    if (me.next == list.size()) return moved;
    Action const& a = list[me.next];
    if (is_message(a.op)) {
      auto const kept = me.sends;
      reach(r, a);
      if (!rounds_) {
        if (!buffer_is_free(r, a)) {
          me.sends = kept;
          return moved;
        }
        me.started[name(a)] = 0;
        int const other = me.same_call[me.next];
        if (other >= 0 && other < static_cast<int>(me.next)) {
          me.partner[name(a)] = name(list[static_cast<std::size_t>(other)]);
          me.partner[name(list[static_cast<std::size_t>(other)])] = name(a);
        }
      }
    } else if (!can_compute(r, a)) {
      return moved;
    }
    ++me.next;
    return true;
  }

  bool can_compute(std::size_t r, Action const& a) {
    if (a.op == Op::optimizer_step)
      return std::all_of(ranks_[r].sends.begin(), ranks_[r].sends.end(), [&](auto const& of_slot) {
        return std::all_of(of_slot.second.begin(), of_slot.second.end(), [&](Name const& m) { return over(r, m); });
      });
    if (a.op == Op::forward && input_is_remote(p_, a.stage)) return over(r, {a.stage - 1, a.microbatch, false});
    if (a.op == Op::forward) {
      if (!free(r, a, true, true)) return false;
      ranks_[r].sends[{a.stage, a.slot}].clear();
      return true;
    }
    if (!makes_input_gradient(a.op)) return true;
    if (output_is_remote(p_, a.stage) && !over(r, {a.stage + 1, a.microbatch, true})) return false;
    return free(r, a, a.op == Op::backward_input, true);
  }

  Program const& p_;
  Rounds const* rounds_;
  std::vector<Rank> ranks_;
};

/// The rounds hold each message once, at both of its ends, and one for each pair of ranks and direction.
void expect_sound(Program const& p, Rounds const& rounds) {
  ASSERT_EQ(rounds.ranks.size(), p.ranks.size());
  std::vector<std::map<Name, std::size_t>> round_of(p.ranks.size());
  for (std::size_t r = 0; r < p.ranks.size(); ++r) {
    ASSERT_EQ(rounds.ranks[r].size(), rounds.ranks[0].size());
    for (std::size_t k = 0; k < rounds.ranks[r].size(); ++k) {
      std::set<std::pair<int, bool>> lines;
      for (std::size_t i : rounds.ranks[r][k].messages) {
        Action const& a = p.ranks[r][i];
        ASSERT_TRUE(is_message(a.op));
        EXPECT_TRUE(round_of[r].emplace(name(a), k).second) << to_string(a);
        EXPECT_TRUE(lines.emplace(rank_of(p, peer_stage(a)), is_send(a.op)).second) << to_string(a) << " round " << k;
        EXPECT_LT(i, rounds.ranks[r][k].from);
      }
      EXPECT_LE(rounds.ranks[r][k].from, rounds.ranks[r][k].by);
    }
  }
  for (std::size_t r = 0; r < p.ranks.size(); ++r) {
    std::size_t messages = 0;
    for (Action const& a : p.ranks[r]) {
      if (!is_message(a.op)) continue;
      ++messages;
      auto const& other = round_of[static_cast<std::size_t>(rank_of(p, peer_stage(a)))];
      ASSERT_TRUE(round_of[r].contains(name(a)) && other.contains(name(a))) << to_string(a);
      EXPECT_EQ(round_of[r].at(name(a)), other.at(name(a))) << to_string(a);
    }
    EXPECT_EQ(messages, round_of[r].size());
  }
}

void expect_runs(Program const& p, Execution how, Pass pass, std::mt19937& random) {
  ASSERT_TRUE(validate(p, how, pass).empty());
  std::string why;
  auto const rounds = find_rounds(p, how, pass, why);
  ASSERT_TRUE(rounds) << why;
  expect_sound(p, *rounds);
  for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE(Machine(p, &*rounds).run(random)) << to_text(p);
}

TEST(Rounds, RunEveryScheduleToItsEnd) {
  std::mt19937 random(38);
  for (Generator const* g : generators())
    for (int ranks : {2, 3, 4, 6})
      for (int lookahead : {0, 1, 3}) {
        int const microbatches = ranks * 2;
        Shape const shape{ranks, microbatches, g->any_stages_per_rank ? 2 : 0, 0};
        SCOPED_TRACE(std::string(g->name) + " on " + std::to_string(ranks));
        ValidProgram const training(complete(generate(g->name, shape), 1, lookahead), with(P2p::ring));
        expect_runs(training, with(P2p::ring), Pass::training, random);
        bool const around = training->num_stages > ranks && training->stage_rank[static_cast<std::size_t>(ranks)] == 0;
        EXPECT_EQ(training.rounds().periodic, around && ranks > 2);
        expect_runs(forward_only(training, microbatches), with(P2p::ring), Pass::forward_only, random);
        auto pairs = with(P2p::ring);
        pairs.pairs = true;
        auto closed = training.program();
        close_pairs(closed);
        if (validate(closed, pairs).empty()) expect_runs(closed, pairs, Pass::training, random);
      }
}

TEST(Rounds, RunRandomProgramsOnTheRing) {
  std::mt19937 random(39);
  for (int turn = 0; turn < 300; ++turn) {
    int const ranks = 2 + draw(random, 4), stages = ranks + draw(random, 2 * ranks);
    std::vector<int> placement{draw(random, ranks)};
    while (static_cast<int>(placement.size()) < stages)
      placement.push_back((placement.back() + ranks - 1 + draw(random, 3)) % ranks);
    auto const compute = test::random_program(random, placement, ranks, 1 + draw(random, 6), draw(random, 3));
    auto how = with(P2p::ring);
    how.waits_inside = draw(random, 2) == 0;
    auto const p = complete(compute, draw(random, 3), draw(random, 3));
    if (!validate(p, how).empty()) continue;
    expect_runs(p, how, Pass::training, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Rounds, LeaveNoMessageBehindThatAnOffloadNeeds) {
  std::mt19937 random(40);
  for (int ranks : {2, 3, 4})
    for (char const* schedule : {"1f1b", "zb_h1", "looped_bfs"}) {
      SCOPED_TRACE(schedule);
      auto p = complete(generate(schedule, {ranks, 3 * ranks, schedule[0] == 'l' ? 2 : 0, 0}), 1, 1);
      offload_activations(p, 2, with(P2p::ring));
      std::string why;
      auto const rounds = find_rounds(p, with(P2p::ring), Pass::training, why);
      ASSERT_TRUE(rounds) << why;
      expect_sound(p, *rounds);
      ASSERT_TRUE(Machine(p, &*rounds).run(random));
    }
}

// A divided vocabulary has exchanges over the whole pipeline, too.
TEST(Rounds, GoBesideADividedVocabulary) {
  for (int ranks : {2, 3, 4}) {
    auto const p = test::divided(one_f_one_b(ranks, 2 * ranks));
    std::string why;
    auto const rounds = find_rounds(p, with(P2p::ring), Pass::training, why);
    ASSERT_TRUE(rounds) << why;
    expect_sound(p, *rounds);
  }
}

// m forwards go p - 1 ranks down, one step each, and so do the gradients on their way back.
TEST(Rounds, OfGpipeAreAsManyAsItsStepsWithMessages) {
  for (int ranks : {2, 3, 5})
    for (int microbatches : {1, 4, 7}) {
      std::string why;
      auto const rounds = find_rounds(complete(gpipe(ranks, microbatches)), with(P2p::ring), Pass::training, why);
      ASSERT_TRUE(rounds) << why;
      EXPECT_EQ(rounds->ranks[0].size(), static_cast<std::size_t>(2 * (microbatches + ranks - 2)));
      EXPECT_FALSE(rounds->periodic);
    }
}

TEST(Rounds, OfTheExampleAreThoseOfTheHeader) {
  auto const p = complete(one_f_one_b(2, 3), 1, 1);
  std::string why;
  auto const rounds = find_rounds(p, with(P2p::ring), Pass::training, why);
  ASSERT_TRUE(rounds) << why;
  std::string text;
  for (auto const& round : rounds->ranks[0]) {
    for (std::size_t i : round.messages) text += to_string(Action{p.ranks[0][i].op, 0, p.ranks[0][i].microbatch}) + " ";
    text += "/ ";
  }
  EXPECT_EQ(text, "0SEND_F0 / 0SEND_F1 / 0RECV_B0 / 0RECV_B1 0SEND_F2 / 0RECV_B2 / ");
}

TEST(Rounds, AreRefusedBetweenRanksThatAreNoNeighbours) {
  std::mt19937 random(41);
  auto const p = complete(test::random_program(random, {0, 2, 1, 3}, 4, 2, 0));
  std::string why;
  EXPECT_FALSE(find_rounds(p, with(P2p::ring), Pass::training, why));
  EXPECT_EQ(why, "0SEND_F0@0 of rank 0, which goes to rank 2");
  try {
    ValidProgram const refused(p, with(P2p::ring));
    FAIL() << "the program has no rounds";
  } catch (base::Error const& e) {
    EXPECT_EQ(e.text().where, "pipeline.p2p");
    EXPECT_EQ(e.text().found, why);
  }
  EXPECT_NO_THROW(ValidProgram(p, with(P2p::batched)));
}

std::string pairs_of(Program const& p, std::size_t rank) {
  auto const others = same_call(p, p.ranks[rank]);
  std::string out;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i] < 0) continue;
    auto const j = static_cast<std::size_t>(others[i]);
    EXPECT_EQ(others[j], static_cast<int>(i));
    if (i < j) out += to_string(p.ranks[rank][i]) + "+" + to_string(p.ranks[rank][j]) + " ";
  }
  return out;
}

TEST(Pairs, AreASendAndAReceiveOfOnePeer) {
  auto const p = complete(one_f_one_b(3, 3), 1, 1);
  EXPECT_EQ(pairs_of(p, 0), "0SEND_F0@0+0RECV_B0@0 0SEND_F1@1+0RECV_B1@1 0SEND_F2@2+0RECV_B2@2 ");
  EXPECT_EQ(pairs_of(p, 1), "1SEND_F0@0+1RECV_B0@0 1SEND_F1@1+1RECV_B1@1 1SEND_F2@2+1RECV_B2@2 ");
  EXPECT_EQ(pairs_of(p, 2), "");  // receives are posted before the action whose result is sent
}

// "1SEND_F0@0 1RECV_F1@0" on the second of two ranks, whose neighbour has stages 0 and 2: the receive writes what is
// sent.
TEST(Pairs, AreNoneWhereTheReceiveWritesWhatIsSent) {
  auto p = test::empty_program({0, 1, 0}, 2, 2);
  auto const list = [&](int other_slot) {
    return std::vector<Action>{{Op::send_activation, 1, 0, 0}, {Op::recv_activation, 1, 1, other_slot}};
  };
  p.ranks[1] = list(0);
  EXPECT_EQ(pairs_of(p, 1), "");
  p.ranks[1] = list(1);
  EXPECT_EQ(pairs_of(p, 1), "1SEND_F0@0+1RECV_F1@1 ");
  p.ranks[1] = {{Op::send_gradient, 1, 0, 0}, {Op::recv_gradient, 1, 1, 0}};
  EXPECT_EQ(pairs_of(p, 1), "");
  p.ranks[1] = {{Op::send_activation, 1, 0, 0}, {Op::recv_gradient, 1, 0, 0}};
  EXPECT_EQ(pairs_of(p, 1), "1SEND_F0@0+1RECV_B0@0 ");
  // No message between the two may touch the slot of the first one.
  p = test::empty_program({0, 1, 2}, 3, 2);
  auto const between = [&](int slot) {
    return std::vector<Action>{
        {Op::send_activation, 1, 0, 0}, {Op::recv_activation, 1, 1, slot}, {Op::recv_gradient, 1, 1, 1}};
  };
  p.ranks[1] = between(0);
  EXPECT_EQ(pairs_of(p, 1), "");
  p.ranks[1] = between(1);
  EXPECT_EQ(pairs_of(p, 1), "1SEND_F0@0+1RECV_B1@1 ");
  // A message is in one pair.
  p.ranks[1] = {{Op::send_activation, 1, 0, 0}, {Op::send_activation, 1, 1, 1}, {Op::recv_gradient, 1, 0, 0}};
  EXPECT_EQ(pairs_of(p, 1), "1SEND_F0@0+1RECV_B0@0 ");
}

// Whoever waits for one of a pair waits for both: an order of messages that runs with separate ones may not run so.
TEST(Pairs, AreProvedAsTheyRun) {
  std::mt19937 random(42);
  int good = 0, bad = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    int const ranks = 2 + draw(random, 2), stages = ranks + draw(random, ranks + 1);
    std::vector<int> placement;
    for (int s = 0; s < stages; ++s) placement.push_back(draw(random, 3) == 0 ? draw(random, ranks) : s % ranks);
    auto const compute = test::random_program(random, placement, ranks, 1 + draw(random, 4), draw(random, 3));
    auto p = complete(compute, draw(random, 3), draw(random, 3));
    for (int swaps = draw(random, 12); swaps > 0; --swaps) {
      auto& list = p.ranks[static_cast<std::size_t>(draw(random, ranks))];
      if (list.size() < 3) continue;
      auto const i = static_cast<std::size_t>(draw(random, static_cast<int>(list.size()) - 1));
      auto swapped = p;
      auto& other = swapped.ranks[static_cast<std::size_t>(&list - p.ranks.data())];
      std::swap(other[i], other[i + 1]);
      if (is_message(other[i].op) && validate(swapped, with(P2p::separate)).empty()) p = std::move(swapped);
    }
    if (!validate(p, with(P2p::separate)).empty()) continue;
    bool const proved = validate(p, with(P2p::batched)).empty();
    EXPECT_EQ(Machine(p, nullptr).run(random), proved) << to_text(p);
    if (HasFailure()) return;
    ++(proved ? good : bad);
  }
  EXPECT_GT(good, 1000);
  EXPECT_GT(bad, 3);
}

}  // namespace
