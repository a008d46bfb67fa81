// SPDX-License-Identifier: Apache-2.0
#include "programs.hpp"
#include "unit_cost.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/passes.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>

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

// The list is the order: a program made through it is the one that its passes make, called by hand.
TEST(Passes, run_in_the_order_of_their_list) {
  std::string names;
  for (auto const& pass : passes()) {
    names += std::string(pass.name) + ", ";
    EXPECT_NE(passes_text().find(std::string(pass.description) + "\n"), std::string::npos) << pass.name;
  }
  EXPECT_EQ(names,
            "vocabulary, pairs ahead, deferral, refinement, slots, messages, reductions, pairs, offload, weights, ");
  for (Generator const* g : generators()) {
    Program const compute = generate(g->name, {3, 9, 0});
    int const stages = compute.num_stages;
    EXPECT_EQ(apply_passes(compute, {}), complete(compute)) << g->name;
    std::vector<int> const parts(static_cast<std::size_t>(stages), 2);
    Sharding const sharding{.gather = Every::microbatch, .ahead = 1};
    PassOptions options{.weight_deferral_limit = 2,
                        .parts = parts,
                        .slot_lookahead = 1,
                        .resident = 2,
                        .weights = sharding,
                        .execution = p3d::test::as_executed};
    Program by_hand = compute;
    defer_weight_gradients(by_hand, 2);
    by_hand = complete(refine(by_hand, parts), 1, 1);
    Program const resident = by_hand;
    offload_activations(by_hand, 2, p3d::test::as_executed);
    shard_weights(by_hand, sharding);
    EXPECT_EQ(apply_passes(compute, options), by_hand) << g->name;
    options.is_complete = true;
    EXPECT_EQ(apply_passes(resident, options), by_hand) << g->name << ": later passes alone";

    Program paired = compute;
    exchange_pairs(paired);
    paired = complete(paired);
    close_pairs(paired);
    EXPECT_EQ(apply_passes(compute, {.exchange_pairs = true, .close_pairs = true}), paired) << g->name;

    VocabularyTimes times;
    times.stages.assign(static_cast<std::size_t>(stages), {});
    Program divided = compute;
    divide_vocabulary(divided, times, VocabularyOrder::backwards_first, 1, true);
    PassOptions const division{.vocabulary = VocabularyDivision{times, VocabularyOrder::backwards_first, true}};
    EXPECT_EQ(apply_passes(compute, division), complete(divided)) << g->name;
  }
}

TEST(Passes, a_stage_is_cut_into_parts_that_follow_each_other) {
  EXPECT_EQ(to_text(complete(refine(one_f_one_b(2, 2), {2, 1}))),
            "p3d-schedule 1 stages=3 ranks=2 microbatches=2 placement=0,0,1 slots=2,2,1\n"
            "rank 0: 0F0@0 1F0@0 1SEND_F0@0 1RECV_B0@0 0F1@1 1F1@1 1SEND_F1@1 1RECV_B1@1 1B0@0 0B0@0 1B1@1 1REDUCE "
            "0B1@1 0REDUCE STEP\n"
            "rank 1: 2RECV_F0@0 2F0@0 2B0@0 2SEND_B0@0 2RECV_F1@0 2F1@0 2B1@0 2SEND_B1@0 2REDUCE STEP\n");
}

TEST(Passes, the_last_stage_puts_weight_gradients_off) {
  Program deferring = one_f_one_b(2, 3);
  EXPECT_TRUE(defer_weight_gradients(deferring, 1));
  EXPECT_EQ(to_text(complete(deferring)),
            "p3d-schedule 1 stages=2 ranks=2 microbatches=3 slots=2,2\n"
            "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0F1@1 0SEND_F1@1 0RECV_B1@1 0B0@0 0F2@0 0SEND_F2@0 0RECV_B2@0 0B1@1 "
            "0B2@0 0REDUCE STEP\n"
            "rank 1: 1RECV_F0@0 1F0@0 1RECV_F1@1 1I0@0 1SEND_B0@0 1F1@1 1I1@1 1SEND_B1@1 1W0@0 1RECV_F2@0 1F2@0 1I2@0 "
            "1SEND_B2@0 1W1@1 1W2@0 1REDUCE STEP\n");
  auto const again = deferring;
  EXPECT_FALSE(defer_weight_gradients(deferring, 1)) << "they are split";
  EXPECT_EQ(deferring, again);
}

TEST(Passes, gradients_are_reduced_behind_each_worker) {
  auto const two = apply_passes(one_f_one_b(2, 4), {.workers = 2});
  EXPECT_EQ(
      to_text(two),
      "p3d-schedule 1 stages=2 ranks=2 microbatches=4 slots=2,1\n"
      "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0F1@1 0SEND_F1@1 0RECV_B1@1 0B0@0 0F2@0 0SEND_F2@0 0RECV_B2@0 0B1@1 "
      "0REDUCE 0F3@1 0SEND_F3@1 0RECV_B3@1 0B2@0 0B3@1 0REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1RECV_F1@0 1F1@0 1B1@0 1SEND_B1@0 1REDUCE 1RECV_F2@0 1F2@0 1B2@0 "
      "1SEND_B2@0 1RECV_F3@0 1F3@0 1B3@0 1SEND_B3@0 1REDUCE STEP\n");
  EXPECT_TRUE(validate(two).empty());
  // Every schedule reduces as often as it has workers.
  for (Generator const* g : generators()) {
    auto const name = std::string(g->name);
    for (int workers : {1, 2, 4, 8}) {
      auto const program = apply_passes(generate(name, {2, 8, g->any_stages_per_rank ? 2 : 0}), {.workers = workers});
      EXPECT_TRUE(validate(program).empty()) << name;
      std::vector<int> reductions(static_cast<std::size_t>(program.num_stages), 0);
      for (auto const& actions : program.ranks)
        for (auto const& a : actions)
          if (reduces(a.op)) ++reductions[static_cast<std::size_t>(a.stage)];
      EXPECT_EQ(reductions, std::vector<int>(reductions.size(), workers)) << name;
      // One REDUCE too few or too early is found.
      if (workers == 1) continue;
      auto wrong = program;
      auto& first = wrong.ranks[0];
      auto const at = std::find_if(first.begin(), first.end(), [](Action const& a) { return reduces(a.op); });
      auto const one = *at;
      first.erase(at);
      EXPECT_FALSE(validate(wrong).empty()) << name;
      first.insert(first.begin(), one);
      EXPECT_FALSE(validate(wrong).empty()) << name;
    }
  }
  // What does not end one worker before the next is refused.
  Program mixed = gpipe(1, 2);
  std::swap(mixed.ranks[0][2], mixed.ranks[0][3]);
  EXPECT_NO_THROW(apply_passes(mixed, {.workers = 1}));
  p3d::test::expect_error([&] { apply_passes(mixed, {.workers = 2}); },
                          "0B0@0 of worker 0 behind gradients of worker 1");
}

// Every schedule, with every limit: what the validator proves runs, and a weight part more than that never waits.
TEST(Passes, weight_gradients_wait_up_to_the_limit) {
  int deferred = 0;
  for (Generator const* g : generators()) {
    int const microbatches = std::max(8, g->smallest_microbatches(4));
    Program const whole = generate(std::string(g->name), {4, microbatches, g->any_stages_per_rank ? 2 : 0});
    for (int limit : {1, 3, microbatches}) {
      Program program = whole;
      if (!defer_weight_gradients(program, limit)) {
        EXPECT_EQ(program, whole) << g->name;
        continue;
      }
      program = complete(program);
      EXPECT_TRUE(validate(program).empty()) << g->name << ", " << limit;
      int const last = program.num_stages - 1;
      if (std::any_of(whole.ranks.begin(), whole.ranks.end(), [&](auto const& actions) {
            return std::any_of(actions.begin(), actions.end(),
                               [&](Action const& a) { return a.op == Op::backward_input && a.stage == last; });
          }))
        continue;  // some wait already
      ++deferred;
      int waiting = 0, most = 0;
      for (Action const& a : program.ranks[static_cast<std::size_t>(rank_of(program, last))]) {
        if (a.stage != last) continue;
        if (a.op == Op::backward_weight) --waiting;
        if (a.op == Op::backward_input) most = std::max(most, waiting++);
      }
      EXPECT_EQ(waiting, 0) << g->name;
      EXPECT_EQ(most, std::min(limit, microbatches - 1)) << g->name;
    }
  }
  EXPECT_GE(deferred, 12) << "gpipe, 1f1b, eager_1f1b and interleaved_1f1b have whole backwards";
}

// Stages in a row on a rank work in one buffer for the gradient, the last one's: its slot may not be taken before the
// first of them is done.
TEST(Passes, a_row_of_stages_keeps_the_slot_of_the_gradient) {
  Program const row = parse_program(
      "p3d-schedule 1 stages=3 ranks=1 microbatches=2 placement=0,0,0 slots=2,2,1\n"
      "rank 0: 0F0@0 1F0@0 2F0@0 2B0@0 0F1@1 1F1@1 1B0@0 2F1@0 0B0@0 2B1@0 1B1@1 0B1@1 0REDUCE 1REDUCE 2REDUCE STEP\n");
  auto const found = validate(row);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].message, "takes slot 0 of stage 2 while microbatch 0 still needs it");
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

// Figure 2 of arXiv 2401.10241: in ZB-H1 rank r puts off r weight parts, and one more is in hand.
TEST(SplitBackwards, of_schedules) {
  EXPECT_EQ(split_backwards_at_a_time(complete(one_f_one_b(3, 6))), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(split_backwards_at_a_time(complete(generate("zb_h1", {4, 8, 0, 0}))), (std::vector<int>{1, 2, 3, 4}));
}

// Against a count by pairs: two microbatches are there together when neither ends before the other begins.
TEST(SplitBackwards, of_random_programs) {
  std::mt19937 random(13);
  int seen = 0;
  for (int round = 0; round < 60; ++round) {
    Program const p = complete(random_program(random, {0, 1, 0}, 2, 1 + round % 7, 1 + round % 2));
    for (int first_slot : {0, 1, 3}) {
      std::vector<int> expected(3, 0);
      for (auto const& list : p.ranks)
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (list[i].op != Op::backward_input || list[i].slot < first_slot) continue;
          int together = 0;  // of those that began before this one, or are it
          for (std::size_t j = 0; j <= i; ++j) {
            if (list[j].op != Op::backward_input || list[j].stage != list[i].stage || list[j].slot < first_slot)
              continue;
            auto const end = std::find_if(list.begin(), list.end(), [&](Action const& a) {
              return a.op == Op::backward_weight && a.stage == list[j].stage && a.microbatch == list[j].microbatch;
            });
            together += end - list.begin() > static_cast<std::ptrdiff_t>(i);
          }
          auto& most = expected[static_cast<std::size_t>(list[i].stage)];
          most = std::max(most, together);
        }
      EXPECT_EQ(split_backwards_at_a_time(p, first_slot), expected) << to_text(p);
      seen = std::max(seen, expected[0]);
    }
  }
  EXPECT_GE(seen, 3);
}
