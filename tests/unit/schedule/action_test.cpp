// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/schedule/action.hpp>
#include <p3d/schedule/query.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

using namespace p3d::schedule;

TEST(Action, text_of_every_op) {
  EXPECT_EQ(to_string({Op::forward, 2, 0}), "2F0");
  EXPECT_EQ(to_string({Op::backward, 3, 1, 2}), "3B1@2");
  EXPECT_EQ(to_string({Op::backward_input, 3, 1, 2}), "3I1@2");
  EXPECT_EQ(to_string({Op::backward_weight, 0, 12}), "0W12");
  EXPECT_EQ(to_string({Op::send_activation, 1, 4}), "1SEND_F4");
  EXPECT_EQ(to_string({Op::recv_activation, 1, 4, 0}), "1RECV_F4@0");
  EXPECT_EQ(to_string({Op::send_gradient, 1, 4}), "1SEND_B4");
  EXPECT_EQ(to_string({Op::recv_gradient, 1, 4}), "1RECV_B4");
  EXPECT_EQ(to_string({Op::reduce_gradients, 7}), "7REDUCE");
  EXPECT_EQ(to_string({Op::optimizer_step}), "STEP");
}

TEST(Action, parse_inverts_to_string) {
  for (std::size_t i = 0; i < num_ops; ++i) {
    auto const op = static_cast<Op>(i);
    for (int stage : {0, 9, 511})
      for (int microbatch : {0, 4095})
        for (int slot : {-1, 0, 17})
          for (int version : {0, 3}) {
            Action a{op};
            if (op != Op::optimizer_step) a.stage = stage;
            if (has_microbatch(op)) a.microbatch = microbatch;
            if (has_microbatch(op)) a.slot = slot;
            if (has_version(op)) a.version = version;
            if (op == Op::stage_step && version == 0) continue;  // it makes a version; without one it reads as STEP
            EXPECT_EQ(parse_action(to_string(a)), a) << to_string(a);
          }
  }
}

TEST(Action, the_table_lists_every_operation) {
  auto const text = actions_text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<std::ptrdiff_t>(num_ops));
  for (auto const& row : op_rows) EXPECT_NE(text.find(row.text), std::string::npos) << row.word;
}

TEST(Action, refuses_other_text_and_quotes_it) {
  for (char const* text : {"", "F0", "0F", "0X1", "0F1@", "0F1@-1", "0F1 ", " 0F1", "-1F0", "0F-1", "0STEP", "STEP0",
                           "0REDUCE1", "0f1", "99999999999F0", "0F1@2@3", "0SEND1"})
    try {
      parse_action(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (p3d::base::Error const& error) {
      EXPECT_EQ(error.text().found, '"' + std::string(text) + '"');
      EXPECT_EQ(error.code(), p3d::base::ExitCode::bad_input);
    }
}
