// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules against their closed forms, at the ends and in the middle.

#include <p3d/optim/lr_schedule.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace p3d;
using config::LrSchedule;

config::Optimizer optimizer(LrSchedule schedule, std::int64_t warmup) {
  config::Optimizer o;
  o.lr = 3e-3;
  o.min_lr = 5e-4;
  o.lr_schedule = schedule;
  o.warmup_steps = warmup;
  return o;
}

TEST(LrSchedule, TheLastStepHasMinLr) {
  for (auto schedule : {LrSchedule::cosine, LrSchedule::linear})
    for (std::int64_t warmup : {0, 1, 7, 98})
      for (std::int64_t steps : {100, 101}) {
        auto const o = optimizer(schedule, warmup);
        EXPECT_NEAR(optim::learning_rate(o, steps - 1, steps), o.min_lr, 1e-18) << warmup << " of " << steps;
        EXPECT_GT(optim::learning_rate(o, steps - 2, steps), o.min_lr);
        EXPECT_DOUBLE_EQ(optim::learning_rate(o, warmup, steps), o.lr) << "the first step after the warm-up";
      }
}

TEST(LrSchedule, WarmsUpLinearly) {
  auto const o = optimizer(LrSchedule::cosine, 10);
  for (std::int64_t t = 0; t < 10; ++t)
    EXPECT_DOUBLE_EQ(optim::learning_rate(o, t, 100), 3e-3 * static_cast<double>(t + 1) / 10.0);
}

TEST(LrSchedule, ClosedForms) {
  // 21 steps after 4 of warm-up: x = (t - 4) / 20. A quarter, a half and three quarters of a cosine and of a line.
  auto const cosine = optimizer(LrSchedule::cosine, 4), linear = optimizer(LrSchedule::linear, 4);
  double const span = 2.5e-3, root = std::sqrt(0.5);
  EXPECT_NEAR(optim::learning_rate(cosine, 9, 25), 5e-4 + span * (1 + root) / 2, 1e-17);
  EXPECT_NEAR(optim::learning_rate(cosine, 14, 25), 5e-4 + span / 2, 1e-17);
  EXPECT_NEAR(optim::learning_rate(cosine, 19, 25), 5e-4 + span * (1 - root) / 2, 1e-17);
  EXPECT_NEAR(optim::learning_rate(linear, 9, 25), 3e-3 - span * 0.25, 1e-17);
  EXPECT_NEAR(optim::learning_rate(linear, 14, 25), 3e-3 - span * 0.5, 1e-17);
  EXPECT_NEAR(optim::learning_rate(linear, 19, 25), 3e-3 - span * 0.75, 1e-17);
}

TEST(LrSchedule, ConstantAndShortRuns) {
  for (std::int64_t t : {0, 1, 50, 99})
    EXPECT_DOUBLE_EQ(optim::learning_rate(optimizer(LrSchedule::constant, 0), t, 100), 3e-3);
  EXPECT_DOUBLE_EQ(optim::learning_rate(optimizer(LrSchedule::cosine, 0), 0, 1), 3e-3) << "one step is the first step";
  EXPECT_DOUBLE_EQ(optim::learning_rate(optimizer(LrSchedule::linear, 5), 4, 5), 3e-3)
      << "the warm-up is the whole run";
  EXPECT_DOUBLE_EQ(optim::learning_rate(optimizer(LrSchedule::linear, 50), 4, 5), 3e-4) << "it outlasts the run";
}

}  // namespace
