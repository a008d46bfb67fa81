// SPDX-License-Identifier: Apache-2.0
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

using namespace p3d::schedule;

TEST(Table, one_row_per_rank_one_column_per_step) {
  EXPECT_EQ(to_table(one_f_one_b(2, 2)),
            "rank |   0   1   2   3   4   5\n"
            "   0 | 0F0 0F1   . 0B0   . 0B1\n"
            "   1 |   . 1F0 1B0 1F1 1B1   .\n");
}

TEST(Table, marks_a_cell_and_leaves_out_messages) {
  Program const program = complete(one_f_one_b(2, 1));
  // rank 1: RECV_F F B SEND_B REDUCE STEP
  EXPECT_EQ(to_table(program, 1, 2),
            "rank |     0     1     2     3\n"
            "   0 |   0F0     .     .   0B0\n"
            "   1 |     .   1F0 >1B0<     .\n");
  EXPECT_EQ(to_table(program, 1, 3),
            "rank |          0          1          2          3\n"
            "   0 |        0F0          .          .        0B0\n"
            "   1 |          .        1F0        1B0 >1SEND_B0<\n");
}

TEST(Table, a_window_around_the_mark) {
  EXPECT_EQ(to_table(gpipe(8, 20), 4, 10, 2, 3),
            "rank |     13     14     15\n"
            "   3 |   3F10   3F11   3F12\n"
            "   4 |    4F9 >4F10<   4F11\n"
            "(ranks 3 to 4 of 8, steps 13 to 15 of 54)\n");
}

TEST(Table, shows_programs_that_cannot_run) {
  Program program = one_f_one_b(2, 2);
  program.ranks[0][0] = {Op::forward, 0, 1};     // 0F0 is gone: 1F0 can never run
  program.ranks[1][3] = {Op::backward, 17, 99};  // and this names nothing
  std::string const table = to_table(program, 0, 0);
  for (char const* cell : {">0F1<", "1F0", "17B99", "0B1"}) EXPECT_NE(table.find(cell), std::string::npos) << table;
}
