// SPDX-License-Identifier: Apache-2.0
// Forwards and backwards that interleave: how they are brought together, and what that is worth.

#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

using namespace p3d;
using schedule::Execution;
using schedule::Program;

namespace {

constexpr Execution in_turns{true, std::numeric_limits<int>::max(), true}, alone{true, in_turns.sends_in_flight, false};

Program closed(Program compute, bool ahead) {
  if (ahead) schedule::exchange_pairs(compute);
  auto program = schedule::complete(std::move(compute));
  schedule::close_pairs(program);
  return program;
}

int pairs(Program const& program) {
  int n = 0;
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) n += schedule::begins_pair(actions, i) ? 1 : 0;
  return n;
}

}  // namespace

TEST(Pairs, BroughtTogetherByHand) {
  auto const one = closed(schedule::one_f_one_b(1, 3), true);
  EXPECT_EQ(to_text(one),
            "p3d-schedule 1 stages=1 ranks=1 microbatches=3 slots=2\n"
            "rank 0: 0F0@0 0F1@1 0B0@0 0F2@0 0B1@1 0B2@0 0REDUCE STEP\n");
  EXPECT_EQ(pairs(one), 2);
  EXPECT_EQ(pairs(closed(schedule::one_f_one_b(1, 3), false)), 0) << "a microbatch is no pair with itself";
  // As complete() has it 0SEND_F1 and 0RECV_B1 lie between 0F1 and 0B0: both need the forward.
  EXPECT_EQ(to_text(closed(schedule::one_f_one_b(2, 3), false)),
            "p3d-schedule 1 stages=2 ranks=2 microbatches=3 slots=2,1\n"
            "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0F1@1 0B0@0 0SEND_F1@1 0RECV_B1@1 0F2@0 0B1@1 0SEND_F2@0 0RECV_B2@0 "
            "0B2@0 0REDUCE STEP\n"
            "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1RECV_F1@0 1F1@0 1B1@0 1SEND_B1@0 1RECV_F2@0 1F2@0 1B2@0 "
            "1SEND_B2@0 1REDUCE STEP\n");
}

// What the executor is given is valid or the validator says why; no action is lost, and messages of a kind between two
// ranks keep their order.
TEST(Pairs, KeepEveryAction) {
  auto const sorted = [](std::vector<schedule::Action> list) {
    std::vector<std::string> out;
    for (auto a : list) {
      a.slot = -1;
      out.push_back(to_string(a));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  std::set<std::string_view> refused[2];  // without and with a forward more ahead
  for (schedule::Generator const* g : schedule::generators())
    for (int p = 1; p <= 6; ++p)
      for (int m : {g->smallest_microbatches(p), 2 * p, 2 * p + 3}) {
        if (m < g->smallest_microbatches(p)) continue;
        for (bool ahead : {false, true}) {
          auto const plain = schedule::complete(schedule::generate(g->name, {p, m, 0}));
          auto const program = closed(schedule::generate(g->name, {p, m, 0}), ahead);
          for (std::size_t r = 0; r < plain.ranks.size(); ++r)
            EXPECT_EQ(sorted(program.ranks[r]), sorted(plain.ranks[r])) << g->name;
          bool const runs = validate(program, in_turns).empty();
          if (!runs) refused[ahead ? 1 : 0].insert(g->name);
          // The same proof with and without turns.
          EXPECT_EQ(runs, validate(program, alone).empty()) << g->name;
          if (runs && pairs(program) > 0) {
            EXPECT_GT(plan::simulate(program, plan::PipelineCosts::uniform(program.num_stages), in_turns).makespan, 0);
          }
        }
      }
  // There a forward's output would wait for a backward that needs it.
  EXPECT_EQ(refused[0], (std::set<std::string_view>{"gpipe", "looped_bfs", "v_half", "v_min"}));
  EXPECT_EQ(refused[1], (std::set<std::string_view>{"gpipe", "looped_bfs", "sequential", "v_half", "v_min", "zb_h1"}));
}

// One rank, m microbatches: F, then m - 1 pairs, then B. Either hides its waits behind what the other computes.
TEST(Pairs, HideWaitsBehindTheOther) {
  for (double fw : {0.0, 0.5, 3.0})
    for (double bw : {0.0, 0.5, 3.0}) {
      auto costs = plan::PipelineCosts::uniform(
          1, {.forward = 1 + fw, .input = 1 + bw, .weight = 1, .forward_wait = fw, .input_wait = bw});
      double const f = 1, b = 2;
      for (int m : {1, 2, 7}) {
        auto const program = closed(schedule::one_f_one_b(1, m), true);
        double const pair = f + b + std::max(0.0, fw - b) + std::max(0.0, bw - f);
        EXPECT_DOUBLE_EQ(plan::simulate(program, costs, in_turns).makespan, f + fw + (m - 1) * pair + b + bw);
        EXPECT_DOUBLE_EQ(plan::simulate(program, costs, alone).makespan, m * (f + fw + b + bw));
      }
    }
}

// Over a pipeline pairs need about twice the warm-up, or each stage waits for the next one's pair: then eager 1F1B
// hides most of the waits, and 1F1B as it is would lose more than it gains.
TEST(Pairs, NeedTheWarmUpOfEager1F1B) {
  int const p = 4, m = 32;
  auto const costs = [](double wait) {
    return plan::PipelineCosts::uniform(
        p, {.forward = 1 + wait, .input = 1 + wait, .weight = 1, .forward_wait = wait, .input_wait = wait});
  };
  auto const time = [&](char const* name, bool ahead, double wait, Execution how) {
    return plan::simulate(closed(schedule::generate(name, {p, m, 0}), ahead), costs(wait), how).makespan;
  };
  double const free = plan::simulate(schedule::complete(schedule::generate("1f1b", {p, m, 0})), costs(0)).makespan;
  double const shown = plan::simulate(schedule::complete(schedule::generate("1f1b", {p, m, 0})), costs(1)).makespan;
  EXPECT_DOUBLE_EQ(shown - free, (m + p - 1) * 2.0);
  double const eager = time("eager_1f1b", true, 1, in_turns);
  EXPECT_GT((shown - eager) / (shown - free), 0.7);
  EXPECT_GT(time("1f1b", true, 1, in_turns), 1.3 * eager);
}
