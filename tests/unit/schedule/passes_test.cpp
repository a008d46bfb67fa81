// SPDX-License-Identifier: Apache-2.0
#include "programs.hpp"
#include "unit_cost.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

using namespace p3d::schedule;
using p3d::test::random_program;

TEST(Passes, one_f_one_b_completed_by_hand) {
  EXPECT_EQ(
      to_text(complete(one_f_one_b(2, 3))),
      "p3d-schedule 1 stages=2 ranks=2 microbatches=3 slots=2,1\n"
      "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0F1@1 0SEND_F1@1 0RECV_B1@1 0B0@0 0F2@0 0SEND_F2@0 0RECV_B2@0 0B1@1 0B2@0 "
      "0REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1RECV_F1@0 1F1@0 1B1@0 1SEND_B1@0 1RECV_F2@0 1F2@0 1B2@0 1SEND_B2@0 "
      "1REDUCE STEP\n");
}

TEST(Passes, a_spare_slot_lets_the_receive_go_ahead) {
  Program const program = complete(one_f_one_b(2, 3), 2, 2);
  EXPECT_EQ(program.num_slots, (std::vector<int>{2, 2}));
  EXPECT_EQ(to_string(program.ranks[1][1]), "1RECV_F1@1");  // before 1F0
  EXPECT_TRUE(validate(program).empty());
}

TEST(Passes, no_message_between_stages_of_one_rank) {
  std::mt19937 random(5);
  // A V: the turn (stages 1 and 2) is on rank 1.
  Program const program = complete(random_program(random, {0, 1, 1, 0}, 2, 3, 2));
  int messages = 0;
  for (auto const& list : program.ranks)
    for (Action const& a : list)
      if (is_message(a.op)) {
        ++messages;
        int const low = std::min(a.stage, peer_stage(a));
        EXPECT_TRUE(low == 0 || low == 2) << to_string(a);
      }
  EXPECT_EQ(messages, 2 * 2 * 2 * 3);  // two borders, two kinds, two ends, three microbatches
}

TEST(Passes, slots_are_the_peak_of_liveness) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Program const compute = random_program(random, {0, 1, 2}, 3, 5, round % 3);
    Program program = compute;
    assign_slots(program);
    // Where the order of messages does not force early receives, the peak is that of the compute actions; a forced
    // early receive can only add.
    EXPECT_EQ(program.num_slots[0], p3d::test::peak_live(compute, 0));
    for (int s = 1; s < 3; ++s)
      EXPECT_GE(program.num_slots[static_cast<std::size_t>(s)], p3d::test::peak_live(compute, s));
  }
}

// The consumer may take the messages of a channel in another order than they were sent: the pass posts them in send
// order.
TEST(Passes, receives_are_posted_in_the_order_of_the_sends) {
  Program compute = p3d::test::empty_program({0, 1}, 2, 3);
  for (int m : {0, 1, 2}) compute.ranks[0].push_back({Op::forward, 0, m});
  for (int m : {2, 1, 0}) compute.ranks[1].push_back({Op::forward, 1, m});
  for (int m : {1, 0, 2}) compute.ranks[1].push_back({Op::backward, 1, m});
  for (int m : {0, 1, 2}) compute.ranks[0].push_back({Op::backward, 0, m});
  Program const program = complete(compute);
  std::vector<std::string> received;
  for (Action const& a : program.ranks[1])
    if (a.op == Op::recv_activation) received.push_back(to_string({a.op, a.stage, a.microbatch}));
  EXPECT_EQ(received, (std::vector<std::string>{"1RECV_F0", "1RECV_F1", "1RECV_F2"}));
  EXPECT_TRUE(validate(program).empty());
}

// Any executable compute program, over any placement: completed, it runs to its end with eager sends (where nothing but
// the data is waited for), so what the passes add is right; progress under rendezvous depends on the schedule.
TEST(Passes, random_programs_are_completed_correctly) {
  std::mt19937 random(11);
  struct Placement {
    std::vector<int> stage_rank;
    int ranks;
  };
  for (auto const& [stage_rank, ranks] : std::vector<Placement>{{{0}, 1},
                                                                {{0, 0, 0}, 1},
                                                                {{0, 1, 2, 3}, 4},
                                                                {{0, 1, 0, 1, 0, 1}, 2},
                                                                {{0, 1, 2, 0, 1, 2}, 3},
                                                                {{0, 1, 2, 2, 1, 0}, 3},
                                                                {{2, 0, 0, 1, 2, 1}, 3}})
    for (int round = 0; round < 60; ++round)
      for (int ahead : {0, 1, 5}) {
        Program const compute = random_program(random, stage_rank, ranks, 1 + round % 6, round % 3);
        Program const program = complete(compute, ahead, round % 2);
        auto const found = validate(program, {false, 1});
        ASSERT_TRUE(found.empty()) << found.front().message << '\n' << to_text(program);
        for (std::size_t r = 0; r < compute.ranks.size(); ++r) {  // the compute actions are unchanged
          std::vector<Action> kept;
          for (Action a : program.ranks[r])
            if (is_compute(a.op)) {
              a.slot = -1;
              kept.push_back(a);
            }
          ASSERT_EQ(kept, compute.ranks[r]);
        }
      }
}

TEST(Passes, refuse_to_run_twice) {
  Program const program = complete(one_f_one_b(2, 2));
  Program again = program;
  EXPECT_THROW(add_messages(again), p3d::base::Error);
  EXPECT_THROW(add_reductions(again), p3d::base::Error);
  again = program;
  assign_slots(again);  // but slots may be given anew, from the actions that are there
  EXPECT_EQ(again, program);
}
