// SPDX-License-Identifier: Apache-2.0
// Programs that run forwards alone (evaluation, sampling): each is proved by itself.

#include <p3d/base/error.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <iostream>

using namespace p3d::schedule;

namespace {

constexpr Execution executor{true, any_number};  // what the executor does

/// The forwards of a program in its order, with as few slots as that needs.
Program forwards_of(Program const& training) {
  Program p = training;
  for (auto& list : p.ranks) {
    std::erase_if(list, [](Action const& a) { return a.op != Op::forward; });
    for (Action& a : list) a.slot = -1;
  }
  assign_slots(p);
  add_messages(p);
  return p;
}

}  // namespace

// This program was run without a proof, and hung: its ranks wait in a circle, each until the next one takes what it
// sent. Training with the same order of forwards cannot, as it keeps every slot until the gradient is back.
TEST(ForwardOnly, the_order_of_training_alone_proves_nothing) {
  for (int m : {8, 12}) {
    Program const training = complete(generate("looped_bfs", {4, m, 2}));
    ASSERT_TRUE(validate(training, executor).empty());
    Program const bare = forwards_of(training);
    EXPECT_TRUE(validate(bare, {false, any_number}, Pass::forward_only).empty()) << "eager sends hide it";
    auto const found = validate(bare, executor, Pass::forward_only);
    ASSERT_EQ(found.size(), 4u) << "every rank waits";
    for (auto const& v : found) EXPECT_EQ(v.message.substr(0, 9), "deadlock:") << v.message;
    EXPECT_THROW(ValidProgram(bare, executor, Pass::forward_only), p3d::base::Error);

    auto const mended = forward_only(ValidProgram(training, executor), m);
    EXPECT_TRUE(validate(mended, executor, Pass::forward_only).empty());
  }
}

// Every schedule, 1 to 8 ranks, 1 to 3 microbatches a rank: what is made is proved, and takes no more slots than
// training.
TEST(ForwardOnly, every_schedule) {
  int programs = 0, other_order = 0;
  for (Generator const* g : generators())
    for (int p = 1; p <= 8; ++p)
      for (int v : {1, 2, 3, 4}) {
        if (v != g->stages_per_rank && !g->any_stages_per_rank) continue;
        for (int m = g->smallest_microbatches(p); m <= std::max(3 * p, g->smallest_microbatches(p)); ++m)
          for (int lookahead : {0, 1}) {
            ValidProgram const training(complete(generate(g->name, {p, m, v}), 1, lookahead), executor);
            ValidProgram const forward = forward_only(training, m);
            ASSERT_EQ(forward.pass(), Pass::forward_only);
            ASSERT_EQ(forward.execution(), executor);
            ASSERT_TRUE(validate(forward, executor, Pass::forward_only).empty());
            ASSERT_TRUE(validate(forward, {false, any_number}, Pass::forward_only).empty());
            std::size_t actions = 0;
            for (auto const& list : forward->ranks)
              for (Action const& a : list) actions += a.op == Op::forward;
            ASSERT_EQ(actions, static_cast<std::size_t>(forward->num_stages * m));
            for (std::size_t s = 0; s < forward->num_slots.size(); ++s)
              EXPECT_LE(forward->num_slots[s], training->num_slots[s])
                  << g->name << ", p " << p << ", m " << m << ", v " << v << ", stage " << s;
            ++programs;
            other_order += forward.program() == forward_by_microbatch(training->stage_rank, p, m) && v > 1 && p > 1;
            ASSERT_EQ(forward_only(training, 1)->num_microbatches, 1);
          }
      }
  std::cout << programs << " programs, " << other_order << " microbatch by microbatch\n";
}

// The order that always runs: any placement, any execution.
TEST(ForwardOnly, by_microbatch_runs_everywhere) {
  for (std::vector<int> const& placement :
       {std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 3, 3, 2, 1, 0}, {3, 1, 2, 0, 0, 2}, {0, 0, 1, 2, 3, 1}})
    for (int m = 1; m <= 12; ++m)
      for (Execution const how : {Execution{true, 0}, {true, 1}, {true, any_number}, {false, 1}}) {
        auto const found = validate(forward_by_microbatch(placement, 4, m), how, Pass::forward_only);
        EXPECT_TRUE(found.empty()) << found.front().message;
      }
}

TEST(ForwardOnly, refuses_what_belongs_to_training_and_the_other_way_round) {
  Program const forward = forward_by_microbatch({0, 1}, 2, 2);
  EXPECT_TRUE(validate(forward, executor, Pass::forward_only).empty());
  auto found = validate(forward, executor);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().message, "the rank's last action is not STEP");
  found = validate(complete(one_f_one_b(2, 2)), executor, Pass::forward_only);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().message, "has no place in a program that only runs forward");
  Program lacking = forward;
  lacking.ranks[1].pop_back();
  found = validate(lacking, executor, Pass::forward_only);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().message, "1F1 is missing");
}
