// SPDX-License-Identifier: Apache-2.0
// The simulator under the executor's rules: closed forms without communication, small programs by hand with it.

#include "../schedule/programs.hpp"
#include "../schedule/unit_cost.hpp"

#include <p3d/base/error.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>

#include <gtest/gtest.h>

#include <algorithm>

using namespace p3d;
using plan::PipelineCosts;
using plan::simulate;

namespace {

constexpr int most_ranks = 16, most_microbatches = 64;

schedule::Program program_of(char const* name, int p, int m, int v = 0) {
  return schedule::complete(schedule::generate(name, {p, m, v}));
}

}  // namespace

// Without communication cost no rule of the executor (slots, rendezvous, one send in flight) costs time: what the
// free-running lists take, every schedule takes, under any of them. closed_forms_test pins the free-running lists to
// the papers.
TEST(Simulator, rules_cost_nothing_when_messages_do_not) {
  for (schedule::Generator const* g : schedule::generators())
    for (int p = 1; p <= most_ranks; ++p)
      for (int m = g->smallest_microbatches(p); m <= most_microbatches; m += m < 20 ? 1 : 11) {
        auto const compute = schedule::generate(g->name, {p, m, 0});
        auto const program = schedule::complete(compute);
        auto const free = test::run_free(compute, {1, 1, 1});
        for (schedule::Execution const how : {schedule::Execution{true, 1}, {true, 1000}, {false, 1}}) {
          auto const result = simulate(program, PipelineCosts::uniform(program.num_stages), how);
          ASSERT_EQ(result.makespan, free.makespan) << g->name << ", " << p << " ranks, " << m << " microbatches";
          ASSERT_EQ(result.longest_span, free.longest_span)
              << g->name << ", " << p << " ranks, " << m << " microbatches";
          for (int r = 0; r < p; ++r)
            ASSERT_EQ(result.ranks[static_cast<std::size_t>(r)].peak_live, test::peak_live_on_rank(compute, r))
                << g->name;
        }
      }
}

// Arithmetic on one rank: 4 microbatches in 4 slots, of which those above the first n remake activations.
TEST(Simulator, recomputation_is_paid_by_the_slots_that_do_it) {
  for (int kept : {0, 1, 3, 9}) {
    auto costs = PipelineCosts::uniform(1, {1, 2, 4});
    costs.stages[0].recompute = 8;
    costs.slots_kept = kept;
    EXPECT_EQ(simulate(program_of("gpipe", 1, 4), costs).makespan, 4 * 7 + 8 * std::max(0, 4 - kept));
  }
  // In I, not in W.
  auto costs = PipelineCosts::uniform(2, {1, 2, 4});
  for (auto& s : costs.stages) s.recompute = 8;
  EXPECT_EQ(simulate(program_of("zb_h1", 2, 4), costs).busy(), 2 * 4 * 15);
}

// arXiv 1811.06965 and 2104.04473 section 2.2, in full: makespan and peak of gpipe, 1f1b and interleaved, exact.
TEST(Simulator, closed_forms_of_gpipe_1f1b_and_interleaved) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_microbatches; ++m)
      for (plan::StageCost const cost : {plan::StageCost{1, 1, 1}, {2, 1, 0.5}}) {
        double const all = cost.forward + cost.input + cost.weight;
        for (char const* name : {"gpipe", "1f1b"}) {
          auto const result = simulate(program_of(name, p, m), PipelineCosts::uniform(p, cost));
          ASSERT_EQ(result.makespan, (m + p - 1) * all) << name << ", " << p << " ranks, " << m << " microbatches";
          for (int r = 0; r < p; ++r)
            ASSERT_EQ(result.ranks[static_cast<std::size_t>(r)].slots,
                      std::string(name) == "gpipe" ? m : std::min(p - r, m));
        }
        for (int v = 2; v <= 4; ++v) {
          if (m % 3 != 0 && m % p != 0) continue;  // all m are in closed_forms_test
          auto const result = simulate(program_of("interleaved_1f1b", p, m, v), PipelineCosts::uniform(p * v, cost));
          ASSERT_EQ(result.makespan, (m * v + p - 1 + (v - 1) * std::max(0, p - m)) * all);
          if (m % p == 0) {
            ASSERT_EQ(result.peak_live(), std::min(m * v, v * p + p - 1));
          }
        }
      }
}

// Two ranks, one microbatch, by hand: F 2, message 3 + 10 / 5, F 2, B 3, message, B 3.
TEST(Simulator, a_message_by_hand) {
  PipelineCosts costs = PipelineCosts::uniform(2, {2, 1, 2});
  costs.latency = 3;
  costs.bandwidth = 5;
  costs.message_bytes = 10;
  costs.slot_bytes = {100, 50};
  costs.reduce = {4, 1};
  costs.step = 0.5;
  auto const result = simulate(program_of("1f1b", 2, 1), costs, {}, true);
  EXPECT_EQ(result.makespan, 2 + 5 + 2 + 3 + 5 + 3);
  EXPECT_EQ(result.step_time, 20 + 4 + 0.5);
  EXPECT_EQ(result.busy(), 10);
  EXPECT_DOUBLE_EQ(result.bubble(), 1 - 10.0 / 40);
  EXPECT_EQ(result.ranks[1].begin, 7);
  EXPECT_EQ(result.ranks[1].end, 12);
  EXPECT_EQ(result.longest_span, 20);
  EXPECT_EQ(result.bytes_sent(), 20);
  EXPECT_EQ(result.peak_bytes(), 100);
  EXPECT_DOUBLE_EQ(schedule::bubble_share(result.timeline), result.bubble());
  ASSERT_EQ(result.timeline.events.size(), 4u + 4u);  // F, B, REDUCE and STEP on both ranks
  // Starting a message takes the rank's own time too: F 0 to 2, its send until 3, there at 8, F until 10, B until 13,
  // send until 14, ...
  costs.send = 1;
  costs.receive = 0.5;
  auto const slower = simulate(program_of("1f1b", 2, 1), costs, {}, true);
  EXPECT_EQ(slower.makespan, 14 + 5 + 3);
  EXPECT_EQ(slower.busy(), 10);
  EXPECT_EQ(slower.ranks[0].other, 1 + 0.5 + 4 + 0.5);
  EXPECT_EQ(slower.timeline.events.size(), 8u + 4u);
}

// Messages of one channel follow each other; those of the two directions do not wait for each other.
TEST(Simulator, a_slow_channel_bounds_the_step) {
  PipelineCosts costs = PipelineCosts::uniform(2, {1, 1, 0});
  costs.bandwidth = 1;
  costs.message_bytes = 10;
  // GPipe on two ranks: 4 activations in a row, the last F, the first B, 4 gradients in a row, the last B.
  EXPECT_EQ(simulate(program_of("gpipe", 2, 4), costs).makespan, 1 + 4 * 10 + 1 + 1 + 4 * 10 + 1);
}

// Sent, but not asked for: with rendezvous sends a message waits for its receive, with eager sends it does not.
TEST(Simulator, rendezvous_waits_for_the_receive) {
  auto program = schedule::parse_program(
      "p3d-schedule 1 stages=2 ranks=2 microbatches=1 slots=1,1\n"
      "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0B0@0 0REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1REDUCE STEP\n");
  PipelineCosts costs = PipelineCosts::uniform(2, {1, 1, 0});
  costs.latency = 4;
  EXPECT_EQ(simulate(program, costs).makespan, 1 + 4 + 1 + 1 + 4 + 1);
  // Rank 1's list gets another stage's work first, so that its receive comes late.
  program = schedule::parse_program(
      "p3d-schedule 1 stages=3 ranks=2 microbatches=2 placement=0,1,0 slots=2,1,1\n"
      "rank 0: 0F0@0 0SEND_F0@0 0F1@1 0SEND_F1@1 2RECV_F0@0 2F0@0 2B0@0 2SEND_B0@0 0RECV_B0@0 2RECV_F1@0 2F1@0 2B1@0 "
      "2SEND_B1@0 "
      "0RECV_B1@1 0B0@0 0B1@1 0REDUCE 2REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1SEND_F0@0 1RECV_B0@0 1B0@0 1SEND_B0@0 1RECV_F1@0 1F1@0 1SEND_F1@0 1RECV_B1@0 1B1@0 "
      "1SEND_B1@0 "
      "1REDUCE STEP\n");
  ASSERT_TRUE(schedule::validate(program, {true, 1}).empty());
  costs = PipelineCosts::uniform(3, {1, 1, 0});
  costs.latency = 4;
  double const rendezvous = simulate(program, costs, {true, 1}).makespan,
               eager = simulate(program, costs, {false, 1}).makespan;
  // Eager: 1F1's input is there when rank 1's slot is free. Rendezvous: the slot is free when the gradient that was
  // sent from it has arrived (4), and the message begins only then (4).
  EXPECT_EQ(rendezvous - eager, 4 + 4);
}

// Every rank's account adds up, and nothing runs before its input: for random programs with random costs.
TEST(Simulator, timelines_keep_the_order_of_data) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    auto const program = schedule::complete(test::random_program(
        random, round % 2 ? std::vector<int>{0, 1, 2, 2, 1, 0} : std::vector<int>{0, 1, 2, 0, 1, 2}, 3, 1 + round % 5,
        round % 3));
    PipelineCosts costs;
    for (int s = 0; s < 6; ++s)
      costs.stages.push_back({1.0 + test::draw(random, 5), 1.0 + test::draw(random, 5), 1.0 + test::draw(random, 5)});
    costs.latency = test::draw(random, 4);
    auto const result = simulate(program, costs, {round % 4 != 0, 1 + round % 2}, true);
    std::vector<std::vector<double>> forward(6,
                                             std::vector<double>(static_cast<std::size_t>(program.num_microbatches))),
        backward = forward;
    auto const at = [](std::vector<std::vector<double>>& v, int s, int m) -> double& {
      return v[static_cast<std::size_t>(s)][static_cast<std::size_t>(m)];
    };
    for (auto const& e : result.timeline.events) {
      if (e.action.op == schedule::Op::forward) at(forward, e.action.stage, e.action.microbatch) = e.end;
      if (schedule::makes_input_gradient(e.action.op)) at(backward, e.action.stage, e.action.microbatch) = e.end;
    }
    auto const flight = [&](int a, int b) {
      return schedule::rank_of(program, a) == schedule::rank_of(program, b) ? 0.0 : costs.latency;
    };
    std::vector<double> clock(3, 0.0);
    for (auto const& e : result.timeline.events) {
      int const s = e.action.stage, m = e.action.microbatch;
      ASSERT_GE(e.start, clock[static_cast<std::size_t>(e.rank)]);
      clock[static_cast<std::size_t>(e.rank)] = e.end;
      if (e.action.op == schedule::Op::forward && s > 0) {
        ASSERT_GE(e.start, at(forward, s - 1, m) + flight(s - 1, s));
      }
      if (schedule::makes_input_gradient(e.action.op) && s < 5) {
        ASSERT_GE(e.start, at(backward, s + 1, m) + flight(s, s + 1));
      }
    }
    for (auto const& r : result.ranks) ASSERT_LE(r.busy, result.makespan);
  }
}

TEST(Simulator, refuses_programs_that_cannot_run) {
  auto program = program_of("1f1b", 2, 2);
  std::swap(program.ranks[1][0], program.ranks[1][1]);   // F before its receive
  program.ranks[0].erase(program.ranks[0].begin() + 1);  // and no send
  EXPECT_THROW(simulate(program, PipelineCosts::uniform(2)), base::Error);
  EXPECT_THROW(simulate(schedule::one_f_one_b(2, 2), PipelineCosts::uniform(2)), base::Error);
}
