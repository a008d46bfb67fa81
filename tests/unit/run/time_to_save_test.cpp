// SPDX-License-Identifier: Apache-2.0
// The time that a run keeps for its last checkpoint: assumed, until a write has been timed.

#include <p3d/run/checkpoint.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace {

using p3d::run::TimeToSave;

constexpr double gigabyte = 1e9, day = 86400.0;

TEST(TimeToSave, IsThatOfASlowDiskOnEveryNodeUntilAWriteWasTimed) {
  EXPECT_DOUBLE_EQ(TimeToSave(gigabyte, 1, false, day).seconds(false), 10.0);
  EXPECT_DOUBLE_EQ(TimeToSave(gigabyte, 4, false, day).seconds(false), 2.5);
  EXPECT_DOUBLE_EQ(TimeToSave(gigabyte, 1, true, day).seconds(false), 20.0);
  EXPECT_DOUBLE_EQ(TimeToSave(gigabyte, 1, false, std::numeric_limits<double>::infinity()).seconds(false), 10.0);
}

/// A model of 671 billion parameters with both moments in fp32: its 8 TB would take one slow disk 22 hours.
TEST(TimeToSave, LeavesTimeToTrainHoweverLargeTheModelIs) {
  EXPECT_DOUBLE_EQ(TimeToSave(671 * 12 * gigabyte, 1, true, day).seconds(false), day / 4);
  EXPECT_LT(TimeToSave(671 * 12 * gigabyte, 64, true, day).seconds(false), 3600.0);
  EXPECT_EQ(TimeToSave(gigabyte, 1, false, -1.0).seconds(false), 0.0);
}

TEST(TimeToSave, IsThatOfTheLongestWriteOnceOneWasTimed) {
  TimeToSave time(671 * 12 * gigabyte, 1, true, day);
  time.took(40.0);
  EXPECT_DOUBLE_EQ(time.seconds(false), 60.0);
  time.took(20.0);
  EXPECT_DOUBLE_EQ(time.seconds(false), 60.0);
  time.took(80.0);
  EXPECT_DOUBLE_EQ(time.seconds(false), 120.0);
}

TEST(TimeToSave, IsTwiceThatWhileAnotherCheckpointIsBeingWritten) {
  TimeToSave time(gigabyte, 1, false, day);
  EXPECT_DOUBLE_EQ(time.seconds(true), 20.0);
  time.took(40.0);
  EXPECT_DOUBLE_EQ(time.seconds(true), 120.0);
}

}  // namespace
