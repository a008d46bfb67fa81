// SPDX-License-Identifier: Apache-2.0
// The forwards of a step that may run before the step before is known to stand.

#include <p3d/schedule/opening.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "programs.hpp"

using namespace p3d;
using namespace p3d::schedule;

namespace {

constexpr Execution as_executed{true, std::numeric_limits<int>::max()};

std::string names(std::vector<Action> const& actions, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    auto a = actions[i];
    a.slot = -1;
    out += (i ? " " : "") + to_string(a);
  }
  return out;
}

using Message = std::tuple<bool, int, int>;  ///< of activations, the receiving stage, the microbatch
Message message(Action const& a) {
  bool const forward = a.op == Op::send_activation || a.op == Op::recv_activation;
  return {forward, is_send(a.op) ? peer_stage(a) : a.stage, a.microbatch};
}

/// Runs the openings alone, any rank first: every F finds its input. Then the unmatched ends: every message is through,
/// those between two ranks in one order.
void run_alone(Program const& p, Opening const& o, bool from_the_last) {
  std::vector<std::size_t> next(o.actions.size(), 0);
  std::set<std::pair<int, int>> done;                                         // F by stage and microbatch
  std::map<int, int> embedded;                                                // by microbatch: on so many ranks
  std::map<std::tuple<int, int, bool>, std::vector<Message>> sent, received;  // by from, to, of activations
  std::set<Message> under_way;
  auto const pass = [&](int rank, Action const& a) {
    auto const m = message(a);
    int const peer = rank_of(p, peer_stage(a));
    if (is_send(a.op)) {
      sent[{rank, peer, std::get<0>(m)}].push_back(m);
      under_way.insert(m);
    } else {
      received[{peer, rank, std::get<0>(m)}].push_back(m);
    }
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t k = 0; k < next.size(); ++k) {
      auto const r = from_the_last ? next.size() - 1 - k : k;
      for (; next[r] < o.actions[r]; ++next[r], moved = true) {
        Action const& a = p.ranks[r][next[r]];
        std::pair const here{a.stage, a.microbatch}, before{a.stage - 1, a.microbatch};
        if (a.op == Op::forward) {
          bool const ready = a.stage == 0 ? !p.divides_vocabulary || embedded[a.microbatch] == p.num_ranks
                             : input_is_remote(p, a.stage) ? under_way.contains({true, a.stage, a.microbatch})
                                                           : done.contains(before);
          if (!ready) break;
          ASSERT_FALSE(p.divides_vocabulary && a.stage + 1 == p.num_stages);
          ASSERT_TRUE(done.insert(here).second);
        } else if (is_message(a.op)) {
          ASSERT_TRUE(a.op != Op::send_activation || done.contains(here)) << to_string(a);
          ASSERT_NE(a.op, Op::send_gradient);
          pass(static_cast<int>(r), a);
        } else if (a.op == Op::embed_forward) {
          ++embedded[a.microbatch];
        } else {
          ASSERT_TRUE(a.op == Op::gather_weights || a.op == Op::release_weights) << to_string(a);
        }
      }
    }
  }
  EXPECT_EQ(next, o.actions) << "it runs to its end";
  for (auto const& [microbatch, ranks] : embedded) EXPECT_EQ(ranks, p.num_ranks) << microbatch;
  for (std::size_t r = 0; r < o.unmatched.size(); ++r)
    for (Action const& a : o.unmatched[r]) pass(static_cast<int>(r), a);
  EXPECT_EQ(sent, received);
}

int checked = 0;
void expect_opening(Program const& program, std::string const& what) {
  SCOPED_TRACE(what);
  if (!validate(program, as_executed).empty()) return;  // not for the executor
  ++checked;
  auto const o = opening(program);
  run_alone(program, o, false);
  run_alone(program, o, true);
  EXPECT_GT(*std::max_element(o.actions.begin(), o.actions.end()), 0u);
}

}  // namespace

TEST(Opening, ByHand) {
  EXPECT_EQ(opening(complete(one_f_one_b(1, 3))).actions, (std::vector<std::size_t>{1}));
  auto const p = complete(one_f_one_b(3, 4));
  auto const o = opening(p);
  EXPECT_EQ(names(p.ranks[0], o.actions[0]), "0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0F2 0SEND_F2 0RECV_B2");
  EXPECT_EQ(names(p.ranks[1], o.actions[1]), "1RECV_F0 1RECV_F1 1F0 1SEND_F0 1RECV_B0 1F1 1SEND_F1 1RECV_B1");
  EXPECT_EQ(names(p.ranks[2], o.actions[2]), "2RECV_F0 2F0");
  // Of gradients only the receives are there, and what goes to a rank that is not as far only as a send.
  EXPECT_EQ(names(o.unmatched[0], o.unmatched[0].size()), "");
  EXPECT_EQ(names(o.unmatched[1], o.unmatched[1].size()), "1SEND_B0 1RECV_F2 1SEND_B1 1SEND_B2");
  EXPECT_EQ(names(o.unmatched[2], o.unmatched[2].size()), "2SEND_B0 2RECV_F1 2SEND_B1");
}

// zb_h2 fills its pipeline as far as it does for this: without it ranks wait in every step.
TEST(Opening, OfZeroBubbleIsItsWarmUp) {
  auto const forwards = [](char const* name, int p, int m) {
    auto const program = complete(generate(name, {p, m, 0}));
    auto const o = opening(program);
    std::vector<int> out;
    for (std::size_t r = 0; r < o.actions.size(); ++r)
      out.push_back(static_cast<int>(std::count_if(program.ranks[r].begin(),
                                                   program.ranks[r].begin() + static_cast<int>(o.actions[r]),
                                                   [](Action const& a) { return a.op == Op::forward; })));
    return out;
  };
  EXPECT_EQ(forwards("zb_h2", 4, 8), (std::vector<int>{7, 5, 3, 1}));
  EXPECT_EQ(forwards("zb_h1", 4, 8), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(forwards("zb_v", 4, 8), (std::vector<int>{8, 8, 8, 8}));
}

TEST(Opening, OfEverySchedule) {
  for (Generator const* g : generators())
    for (int p = 1; p <= 6; ++p)
      for (int m : {g->smallest_microbatches(p), 2 * p, 2 * p + 3}) {
        if (m < g->smallest_microbatches(p)) continue;
        auto const compute = generate(g->name, {p, m, 0});
        auto const name = std::string(g->name) + " " + std::to_string(p) + " " + std::to_string(m);
        expect_opening(complete(compute), name);
        expect_opening(complete(compute, 2, 1), name + " ahead");
        for (auto every : {Every::step, Every::microbatch}) {
          auto sharded = complete(compute);
          shard_weights(sharded, {every, every, 1});
          expect_opening(sharded, name + " sharded");
        }
        for (auto order : {VocabularyOrder::forwards_first, VocabularyOrder::backwards_first}) {
          auto divided = compute;
          VocabularyTimes times;
          times.stages.assign(static_cast<std::size_t>(compute.num_stages), {});
          divide_vocabulary(divided, times, order);
          expect_opening(complete(divided, 1, 1), name + " divided");
        }
      }
  EXPECT_GT(checked, 1000);
}

TEST(Opening, OfRandomPrograms) {
  std::mt19937 random(20261124);
  for (int i = 0; i < 300; ++i) {
    int const ranks = 1 + test::draw(random, 5), stages = ranks + test::draw(random, 2 * ranks);
    std::vector<int> where;
    for (int s = 0; s < stages; ++s) where.push_back(s < ranks ? s : test::draw(random, ranks));
    auto const compute = test::random_program(random, where, ranks, 1 + test::draw(random, 6), test::draw(random, 3));
    expect_opening(complete(compute), "random " + std::to_string(i));
  }
}
