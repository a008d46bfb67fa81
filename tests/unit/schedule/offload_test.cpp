// SPDX-License-Identifier: Apache-2.0
// Programs that offload activations: where the pass moves them, what the validator refuses, what the simulator adds.

#include <p3d/base/error.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace {

using namespace p3d::schedule;

constexpr Execution execution{true, std::numeric_limits<int>::max()};

int moves(Program const& program) {
  int sum = 0;
  for (auto const& list : program.ranks)
    for (Action const& a : list) sum += a.op == Op::offload_activations;
  return sum;
}

Program offloaded(Program compute, int resident = 2) {
  Program program = complete(std::move(compute));
  offload_activations(program, resident, execution);
  return program;
}

std::string violation(Program const& program) {
  auto const found = validate(program, execution);
  return found.empty() ? "" : found.front().message;
}

Action& find(Program& program, Action const& wanted) {
  for (auto& list : program.ranks)
    for (Action& a : list)
      if (a.op == wanted.op && a.stage == wanted.stage && a.microbatch == wanted.microbatch) return a;
  throw std::runtime_error("no such action");
}
void erase(Program& program, Action const& wanted) {
  for (auto& list : program.ranks)
    std::erase_if(list, [&](Action const& a) {
      return a.op == wanted.op && a.stage == wanted.stage && a.microbatch == wanted.microbatch;
    });
}

// Two slots, in turns: one is computed in while the other is written out and read into.
TEST(Offload, one_f_one_b_by_hand) {
  EXPECT_EQ(to_text(offloaded(one_f_one_b(3, 5))),
            "p3d-schedule 1 stages=3 ranks=3 microbatches=5 slots=2,2,1\n"
            "rank 0: 0F0@0 0SEND_F0@0 0OFFLOAD_F0@0 0F1@1 0SEND_F1@1 0OFFLOAD_F1@1 0RELOAD_F0@0 0RECV_B0@0 0F2@1 "
            "0SEND_F2@1 0OFFLOAD_F2@1 0B0@0 0RELOAD_F1@0 0RECV_B1@0 0F3@1 0SEND_F3@1 0OFFLOAD_F3@1 0B1@0 0RELOAD_F2@0 "
            "0RECV_B2@0 0F4@1 0SEND_F4@1 0OFFLOAD_F4@1 0RELOAD_F3@1 0RECV_B3@1 0B2@0 0RELOAD_F4@0 0RECV_B4@0 0B3@1 "
            "0B4@0 0REDUCE STEP\n"
            "rank 1: 1RECV_F0@0 1RECV_F1@1 1F0@0 1SEND_F0@0 1RECV_B0@0 1F1@1 1SEND_F1@1 1RECV_B1@1 1B0@0 1SEND_B0@0 "
            "1RECV_F2@0 1F2@0 1SEND_F2@0 1RECV_B2@0 1B1@1 1SEND_B1@1 1RECV_F3@1 1F3@1 1SEND_F3@1 1RECV_B3@1 1B2@0 "
            "1SEND_B2@0 1RECV_F4@0 1F4@0 1SEND_F4@0 1RECV_B4@0 1B3@1 1SEND_B3@1 1B4@0 1SEND_B4@0 1REDUCE STEP\n"
            "rank 2: 2RECV_F0@0 2F0@0 2B0@0 2SEND_B0@0 2RECV_F1@0 2F1@0 2B1@0 2SEND_B1@0 2RECV_F2@0 2F2@0 2B2@0 "
            "2SEND_B2@0 2RECV_F3@0 2F3@0 2B3@0 2SEND_B3@0 2RECV_F4@0 2F4@0 2B4@0 2SEND_B4@0 2REDUCE STEP\n");
}

// Whatever the schedule keeps, two microbatches of a stage are in memory; three where messages ask for it. The compute
// actions and their order are as they were.
TEST(Offload, two_microbatches_of_a_stage_stay) {
  int moved = 0;
  for (Generator const* g : generators())
    for (int p : {1, 2, 4, 8})
      for (int m : {8, 16}) {
        if (m < g->smallest_microbatches(p)) continue;
        for (int parts : {1, 3}) {
          Program const compute = generate(g->name, {p, m, 0});
          Program const whole = complete(refine(compute, std::vector<int>(compute.stage_rank.size(), parts)));
          Program program = whole;
          offload_activations(program, 2, execution);
          SCOPED_TRACE(std::string(g->name) + " on " + std::to_string(p));
          EXPECT_EQ(violation(program), "");
          moved += moves(program);
          // There, what a rank sends before it is asked for stays: its first chunk is far ahead of its second.
          bool const ahead = g->name == "looped_bfs" && p < m;
          int const most = ahead ? m : g->name == "zb_h2" ? 3 : 2;
          for (int slots : program.num_slots) EXPECT_LE(slots, most);
          auto compute_only = [](Program const& from) {
            std::vector<std::vector<std::string>> lists;
            for (auto const& list : from.ranks) {
              lists.emplace_back();
              for (Action const& a : list)
                if (is_compute(a.op)) lists.back().push_back(to_string({a.op, a.stage, a.microbatch}));
            }
            return lists;
          };
          EXPECT_EQ(compute_only(program), compute_only(whole));
          EXPECT_EQ(to_text(parse_program(to_text(program))), to_text(program));
        }
      }
  EXPECT_GT(moved, 10000);
}

// A rank that would wait for the write takes the slot when it is over, behind the other microbatch.
TEST(Offload, receives_come_late_where_a_rank_waits_for_them) {
  auto const before_use = [](Execution how) {
    Program program = complete(gpipe(3, 8));
    offload_activations(program, 2, how);
    EXPECT_EQ(violation(program), "");
    int sum = 0;
    auto const& list = program.ranks[1];
    for (std::size_t i = 0; i + 1 < list.size(); ++i)
      sum += list[i].op == Op::recv_activation && list[i + 1].op == Op::forward &&
             list[i].microbatch == list[i + 1].microbatch;
    return sum;
  };
  auto waiting = execution;
  waiting.waits_inside = true;
  EXPECT_EQ(before_use(waiting), 8);
  EXPECT_LE(before_use(execution), 1);
}

// Where outputs wait in slots for ranks that are far behind, only the stages between which they wait have more.
TEST(Offload, only_stages_that_need_more_slots_have_them) {
  EXPECT_EQ(offloaded(generate("looped_bfs", {2, 16, 2})).num_slots, (std::vector<int>{2, 3, 13, 2}));
  EXPECT_EQ(offloaded(generate("zb_h2", {4, 8, 0})).num_slots, (std::vector<int>{2, 3, 3, 2}));
}

TEST(Offload, nothing_moves_where_slots_suffice) {
  Program const whole = complete(one_f_one_b(4, 8));
  Program program = whole;
  offload_activations(program, 8, execution);
  EXPECT_EQ(program, whole);
  EXPECT_EQ(moves(offloaded(one_f_one_b(1, 8))), 0) << "each backward follows its forward";
}

// A microbatch between I and W is away with its gradients, and only then do these count.
TEST(Offload, gradients_wait_between_the_parts) {
  auto const h1 = offloaded_activations(offloaded(generate("zb_h1", {4, 8, 0})));
  EXPECT_FALSE(h1.front().with_gradients);
  EXPECT_TRUE(h1.back().with_gradients) << "the last rank's W are far behind";
  auto const plain = offloaded_activations(offloaded(one_f_one_b(4, 8)));
  EXPECT_FALSE(plain.front().with_gradients);
  EXPECT_EQ(plain.front().places, 3);  // F3 while 0 to 2 wait
  EXPECT_EQ(plain.back(), OffloadedActivations{});
}

TEST(Offload, a_wrong_placement_is_refused) {
  Program const whole = offloaded(one_f_one_b(3, 5));
  ASSERT_EQ(violation(whole), "");
  Program p = whole;
  erase(p, {Op::reload_activations, 0, 2});
  EXPECT_EQ(violation(p), "slot 0 of stage 0 holds microbatch 1, not microbatch 2");
  p = whole;
  erase(p, {Op::offload_activations, 0, 2});
  EXPECT_EQ(violation(p), "takes slot 1 of stage 0 while microbatch 2 still needs it");
  p = whole;
  find(p, {Op::reload_activations, 0, 2}).slot = 1;
  EXPECT_EQ(violation(p), "slot 0 of stage 0 holds microbatch 1, not microbatch 2");
  p = whole;
  std::swap(find(p, {Op::offload_activations, 0, 0}), find(p, {Op::send_activation, 0, 0}));
  EXPECT_EQ(violation(p), "runs before 0SEND_F0");
  p = whole;
  std::swap(find(p, {Op::reload_activations, 0, 1}), find(p, {Op::forward, 0, 4}));
  EXPECT_NE(violation(p), "");
  p = whole;
  for (auto& a : p.ranks[0])
    if (a.op == Op::offload_activations && a.microbatch == 1) a = {Op::offload_activations, 0, 0, 0};
  EXPECT_NE(violation(p), "");
  // Stages in a row: the input of stage 1 is the output of stage 0.
  Program row = offloaded(refine(gpipe(1, 4), {2}));
  ASSERT_EQ(violation(row), "");
  Action const early{Op::reload_activations, 0, 1};
  Action const reload = find(row, early);
  erase(row, early);
  auto& list = row.ranks[0];
  auto const own = std::find_if(list.begin(), list.end(), [](Action const& a) {
    return a.op == Op::backward && a.stage == 0 && a.microbatch == 1;
  });
  list.insert(own, reload);
  EXPECT_EQ(violation(row), "uses slots of stage 0, whose activations are offloaded: 0RELOAD_F1 has to come first");
  EXPECT_THROW(static_cast<void>(ValidProgram(row, execution)), p3d::base::Error);
}

TEST(Offload, forward_only_programs_do_not_offload) {
  ValidProgram const training(offloaded(gpipe(4, 8)), execution);
  ASSERT_GT(moves(training), 0);
  ValidProgram const evaluation = forward_only(training, 8);
  EXPECT_EQ(moves(evaluation), 0);
  for (int s = 0; s < 4; ++s) {
    auto const at = static_cast<std::size_t>(s);
    EXPECT_LE(evaluation->num_slots[at], training->num_slots[at]);
  }
}

TEST(Offload, a_file_that_offloads_is_complete) {
  Program const whole = offloaded(one_f_one_b(3, 5));
  EXPECT_EQ(parse_schedule_file(to_text(whole)), whole);
  try {
    parse_schedule_file(to_csv(whole));
    FAIL() << "slots are missing";
  } catch (p3d::base::Error const& e) {
    EXPECT_EQ(e.text().found, "actions without slots");
  }
}

// A copy costs a rank nothing while it hides behind the other microbatch, and what sticks out where it does not.
TEST(Offload, the_simulator_lets_copies_hide) {
  Program const whole = complete(one_f_one_b(4, 8));
  Program const program = offloaded(one_f_one_b(4, 8));
  auto costs = p3d::plan::PipelineCosts::uniform(4);
  costs.slot_bytes.assign(4, 10.0);
  auto const time = [&](Program const& p, double swap) {
    costs.swap.assign(4, swap);
    return p3d::plan::simulate(p, costs, execution).makespan;
  };
  double const kept = time(whole, 1.0);
  EXPECT_EQ(time(program, 0.0), kept);
  // Steady state: of one microbatch in, of one out, in the time of F and B, which is 3.
  EXPECT_LE(time(program, 0.5), kept + 1);
  EXPECT_GT(time(program, 3.0), kept + 10);
  auto const now = p3d::plan::simulate(program, costs, execution),
             before = p3d::plan::simulate(whole, costs, execution);
  EXPECT_EQ(before.ranks[0].peak_bytes, 40.0);
  EXPECT_EQ(now.ranks[0].peak_bytes, 20.0);
}

}  // namespace
