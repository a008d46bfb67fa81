// SPDX-License-Identifier: Apache-2.0
#include "programs.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>

using namespace p3d::schedule;

namespace {

std::size_t find(std::vector<Action> const& list, char const* text) {
  Action wanted = parse_action(text);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].op == wanted.op && list[i].stage == wanted.stage && list[i].microbatch == wanted.microbatch) return i;
  ADD_FAILURE() << "no " << text;
  return 0;
}

/// Expects an error on that rank's action whose message has `words`.
void refused(Program const& program, int rank, int index, std::string const& words, Execution how = {}) {
  auto const found = validate(program, how);
  ASSERT_FALSE(found.empty()) << to_text(program);
  bool named = false;
  for (auto const& v : found)
    named = named || (v.rank == rank && v.index == index && v.message.find(words) != std::string::npos);
  EXPECT_TRUE(named) << found.front().rank << ", " << found.front().index << ": " << found.front().message << '\n'
                     << to_text(program);
}

/// Posts every receive directly before its use: the "natural" order.
Program natural(Program compute) {
  assign_slots(compute);
  add_messages(compute, 0, 0);
  add_reductions(compute);
  return compute;
}

}  // namespace

TEST(Validate, every_dropped_action_is_missed) {
  Program const whole = complete(one_f_one_b(3, 4));
  for (std::size_t r = 0; r < whole.ranks.size(); ++r)
    for (std::size_t i = 0; i < whole.ranks[r].size(); ++i) {
      Program program = whole;
      program.ranks[r].erase(program.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(validate(program).empty()) << "without action " << i << " of rank " << r;
    }
}

TEST(Validate, every_duplicated_action_is_seen) {
  Program const whole = complete(one_f_one_b(3, 4));
  for (std::size_t r = 0; r < whole.ranks.size(); ++r)
    for (std::size_t i = 0; i < whole.ranks[r].size(); ++i) {
      Program program = whole;
      auto const at = program.ranks[r].begin() + static_cast<std::ptrdiff_t>(i);
      program.ranks[r].insert(at, whole.ranks[r][i]);
      EXPECT_FALSE(validate(program).empty()) << "with action " << i << " of rank " << r << " twice";
    }
}

TEST(Validate, names_what_is_missing) {
  Program program = complete(one_f_one_b(2, 2));
  auto& list = program.ranks[1];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(list, "1B1")));
  refused(program, 1, static_cast<int>(find(list, "1RECV_F1")), "1B1 (or I and W) is missing");
}

TEST(Validate, split_backward) {
  std::mt19937 random(3);
  Program const whole = complete(p3d::test::random_program(random, {0, 1}, 2, 2, 1));
  ASSERT_TRUE(validate(whole).empty());
  Program program = whole;
  auto& list = program.ranks[1];
  std::swap(list[find(list, "1I0")], list[find(list, "1W0")]);
  EXPECT_FALSE(validate(program).empty());
  program = whole;
  program.ranks[1][find(program.ranks[1], "1W0")].op = Op::backward;
  refused(program, 1, static_cast<int>(find(program.ranks[1], "1B0")), "both B and I or W");
}

TEST(Validate, backward_before_forward) {
  Program program = complete(one_f_one_b(1, 2));  // 0F0 0B0 0F1 0B1
  std::swap(program.ranks[0][0], program.ranks[0][1]);
  refused(program, 0, 0, "slot 0 of stage 0 is empty");
}

TEST(Validate, reordered_receives) {
  Program program = complete(gpipe(2, 3), 3);
  auto& list = program.ranks[1];
  std::size_t const a = find(list, "1RECV_F0"), b = find(list, "1RECV_F1");
  ASSERT_LT(std::max(a, b),
            find(list, "1F0"));  // both posted before any is used: swapping them breaks the matching only
  std::swap(list[a], list[b]);
  auto const found = validate(program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].message.find("meets"), std::string::npos) << found[0].message;
}

TEST(Validate, slot_reused_while_live) {
  Program program = complete(one_f_one_b(2, 3));
  for (auto& a : program.ranks[0])
    if (a.microbatch == 1) a.slot = 0;  // 0F1 before 0B0
  refused(program, 0, static_cast<int>(find(program.ranks[0], "0F1")), "while microbatch 0 still needs it");
}

TEST(Validate, slot_reused_before_the_weight_part) {
  Program program = complete(one_f_one_b(1, 2));  // 0F0 0B0 0F1 0B1, one slot
  auto& list = program.ranks[0];
  ASSERT_EQ(program.num_slots, std::vector<int>{1});
  std::vector<Action> const tail(list.begin() + 4, list.end());  // REDUCE and STEP
  list.clear();
  for (char const* text : {"0F0", "0I0", "0F1", "0W0", "0I1", "0W1"}) list.push_back(parse_action(text));
  for (auto& a : list) a.slot = 0;
  list.insert(list.end(), tail.begin(), tail.end());
  refused(program, 0, 2, "while microbatch 0 still needs it");
  std::swap(list[2], list[3]);  // 0W0 before 0F1
  EXPECT_TRUE(validate(program).empty());
}

TEST(Validate, slot_out_of_range) {
  Program program = complete(one_f_one_b(2, 3));
  program.ranks[0][0].slot = 2;
  refused(program, 0, 0, "slot 2 of 2");
}

TEST(Validate, reductions) {
  Program const whole = complete(one_f_one_b(2, 2));
  Program program = whole;
  auto& list = program.ranks[0];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(list, "0REDUCE")));
  refused(program, 0, -1, "0REDUCE is missing");

  program = whole;
  auto& early = program.ranks[0];
  std::size_t const reduce = find(early, "0REDUCE"), last = find(early, "0B1");
  std::swap(early[reduce], early[last]);
  refused(program, 0, static_cast<int>(last), "before the last of its backward");

  program = whole;
  program.ranks[1].pop_back();
  refused(program, 1, -1, "not STEP");
}

TEST(Validate, wrong_rank_and_wrong_message) {
  Program program = complete(one_f_one_b(2, 2));
  program.ranks[0][0].stage = 1;
  refused(program, 0, 0, "stage 1 lives on rank 1");
  program = complete(one_f_one_b(2, 2));
  program.ranks[0][0] = {Op::recv_activation, 0, 0, 0};
  refused(program, 0, 0, "no message here");
}

// A deadlock by hand: rank 0 sends three activations before it posts the receive of the first gradient, and rank 1 has
// one slot, which it can only reuse when that gradient has gone. Eager sends hide it; so does a second send in flight.
TEST(Validate, receives_posted_too_late) {
  Program const program = parse_program(
      "p3d-schedule 1 stages=2 ranks=2 microbatches=3 slots=3,1\n"
      "rank 0: 0F0@0 0SEND_F0@0 0F1@1 0SEND_F1@1 0F2@2 0SEND_F2@2 "
      "0RECV_B0@0 0B0@0 0RECV_B1@1 0B1@1 0RECV_B2@2 0B2@2 0REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1RECV_F1@0 1F1@0 1B1@0 1SEND_B1@0 "
      "1RECV_F2@0 1F2@0 1B2@0 1SEND_B2@0 1REDUCE STEP\n");
  EXPECT_TRUE(validate(program, {false, 1}).empty());
  EXPECT_TRUE(validate(program, {true, 2}).empty());
  auto const found = validate(program, {true, 1});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].message,
            "deadlock: 0SEND_F2@2 waits until rank 1 posts RECV_F number 2 with rank 0; rank 1 is at 1RECV_F1@0");
  EXPECT_EQ(found[1].message,
            "deadlock: 1RECV_F1@0 waits until rank 0 posts RECV_B number 1 with rank 1; rank 0 is at 0SEND_F2@2");
}

// Blocking sends in the natural order deadlock in the steady state of 1F1B (SEND_F meets SEND_B); one non-blocking send
// per direction is enough, and eager sends hide it.
TEST(Validate, natural_order_with_blocking_sends) {
  for (int p = 2; p <= 6; ++p)
    for (int m = p; m <= 2 * p; ++m) {
      Program const program = natural(one_f_one_b(p, m));
      auto const found = validate(program, {true, 0});
      ASSERT_FALSE(found.empty()) << p << ", " << m;
      EXPECT_EQ(found[0].message.substr(0, 9), "deadlock:");
      EXPECT_TRUE(validate(program, {true, 1}).empty());
      EXPECT_TRUE(validate(program, {false, 0}).empty());
    }
}

TEST(Validate, sizes) {
  Program program = one_f_one_b(2, 2);
  refused(program, -1, -1, "run assign_slots");
  program = complete(program);
  program.stage_rank[1] = 5;
  refused(program, -1, -1, "stage 1 is on rank 5");
  refused({}, -1, -1, "at least 1");
}

TEST(Validate, require_valid_shows_the_table_with_the_cell_marked) {
  Program program = complete(one_f_one_b(2, 2));
  EXPECT_NO_THROW(require_valid(program));
  std::swap(program.ranks[1][find(program.ranks[1], "1F0")], program.ranks[1][find(program.ranks[1], "1B0")]);
  try {
    require_valid(program);
    FAIL();
  } catch (p3d::base::Error const& error) {
    std::string const text = error.what();
    EXPECT_NE(text.find("rank 1, action 1 (1B0@0): runs before 1F0"), std::string::npos) << text;
    EXPECT_NE(text.find(">1B0<"), std::string::npos) << text;
    EXPECT_EQ(error.code(), p3d::base::ExitCode::bad_input);
  }
}

TEST(Validate, require_valid_cuts_the_table_of_a_large_program) {
  Program program = complete(one_f_one_b(64, 256));
  auto& list = program.ranks[40];
  std::swap(list[find(list, "40F100")], list[find(list, "40B100")]);
  try {
    require_valid(program);
    FAIL();
  } catch (p3d::base::Error const& error) {
    std::string const text = error.what();
    EXPECT_LT(text.size(), 4000u);
    EXPECT_NE(text.find(">40B100<"), std::string::npos) << text;
  }
}
