// SPDX-License-Identifier: Apache-2.0
#include "programs.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

using namespace p3d::schedule;

TEST(Text, round_trip) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 7; ++m)
      for (Program const& program : {gpipe(p, m), one_f_one_b(p, m)}) {
        EXPECT_EQ(parse_program(to_text(program)), program);
        Program const whole = complete(program);
        EXPECT_EQ(parse_program(to_text(whole)), whole);
      }
}

TEST(Text, round_trip_of_any_placement_and_empty_ranks) {
  std::mt19937 random(1);
  for (auto const& placement : {std::vector<int>{0, 1, 2, 2, 1, 0}, {0, 1, 0, 1}, {1, 1, 1}, {2, 0, 3}}) {
    Program const program = complete(p3d::test::random_program(random, placement, 4, 3, 2));
    EXPECT_EQ(parse_program(to_text(program)), program) << to_text(program);
  }
}

// Editors on Windows put a byte order mark in front of a text.
TEST(Text, a_byte_order_mark_is_no_part_of_a_file) {
  Program const whole = complete(one_f_one_b(2, 3));
  EXPECT_EQ(parse_schedule_file("\xef\xbb\xbf" + to_text(whole)), whole);
  EXPECT_EQ(parse_schedule_file("\xef\xbb\xbf" + to_csv(whole)), parse_schedule_file(to_csv(whole)));
}

TEST(Text, a_file_by_hand) {
  Program const program = parse_program(
      "# comment\n\n  p3d-schedule 1 stages=3 microbatches=1 ranks=2 placement=0,1,1  # more\r\n"
      "rank 1:\t1F0 2F0 \r\n rank 0: 0F0");
  EXPECT_EQ(program.stage_rank, (std::vector<int>{0, 1, 1}));
  ASSERT_EQ(program.ranks.size(), 2u);
  EXPECT_EQ(program.ranks[1], (std::vector<Action>{{Op::forward, 1, 0}, {Op::forward, 2, 0}}));
  EXPECT_TRUE(program.num_slots.empty());
}

TEST(Text, refuses_with_the_line) {
  std::string const head = "p3d-schedule 1 stages=2 ranks=2 microbatches=1";
  for (auto const& [text, line] :
       std::vector<std::pair<std::string, int>>{{"", 0},
                                                {"schedule 1", 1},
                                                {"p3d-schedule 2 stages=1 ranks=1 microbatches=1", 1},
                                                {"p3d-schedule 1 stages=2 ranks=2", 1},
                                                {"p3d-schedule 1 stages=2 ranks=2 microbatches=0", 1},
                                                {"p3d-schedule 1 stages=2 ranks=2 microbatches=x", 1},
                                                {"p3d-schedule 1 stages=99999999 ranks=2 microbatches=1", 1},
                                                {head + " colour=3", 1},
                                                {head + " placement=0", 1},
                                                {head + " placement=0,2", 1},
                                                {head + " slots=1,2,3", 1},
                                                {head + "\n0F0", 2},
                                                {head + "\nrank 2: 0F0", 2},
                                                {head + "\nrank 0 0: 0F0", 2},
                                                {head + "\nrank 0:\nrank 0:\n", 3},
                                                {head + "\nrank 0: 0F0\n\nrank 1: 1F0 1Q0\n", 4},
                                                {head + "\nrank 0: 0F0\n", 2}})
    try {
      parse_program(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (p3d::base::Error const& error) {
      EXPECT_NE(error.text().where.find("line " + std::to_string(line)), std::string::npos) << text << '\n'
                                                                                            << error.what();
      EXPECT_EQ(error.code(), p3d::base::ExitCode::bad_input);
    }
}
