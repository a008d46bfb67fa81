// SPDX-License-Identifier: Apache-2.0
// The door to calls that block: what outlasts its budget ends the process with a report, whatever it blocks in.
#include <p3d/comm/wait.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

using p3d::comm::blocking;
using p3d::comm::BlockingCall;

namespace {

class Blocking : public ::testing::Test {
protected:
  void SetUp() override { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

void with_timeout(double seconds) {
  auto policy = p3d::comm::wait_policy();
  policy.timeout_s = seconds;
  p3d::comm::set_wait_policy(policy);
}

TEST_F(Blocking, ReturnsWhatTheCallReturns) {
  EXPECT_EQ(blocking("MPI_Barrier", "world", [] { return 7; }), 7);
  blocking("MPI_Barrier", "world", [] {});
}

TEST_F(Blocking, ACallThatOutlastsTheBudgetEndsTheProcess) {
  auto const stuck = [] {
    with_timeout(0.2);
    blocking("MPI_Cart_create", "world", [] { pause(); });
  };
  EXPECT_EXIT(stuck(), ::testing::ExitedWithCode(3),
              "waited 0.2 s in MPI_Cart_create of 'world' \\(before the first step\\), longer than it may");
}

TEST_F(Blocking, TheInnerOrTheOuterCallIsNamed) {
  auto const inner = [] {
    BlockingCall const outer("checkpoint", "step-10.h5", 60.0);
    BlockingCall const here("H5Dwrite", "step-10.h5", 0.2);
    pause();
  };
  EXPECT_EXIT(inner(), ::testing::ExitedWithCode(3), "in H5Dwrite of 'step-10.h5'");
  auto const outer = [] {
    BlockingCall const here("checkpoint", "step-10.h5", 0.3);
    for (;;) {
      blocking("H5Dwrite", "step-10.h5", [] { usleep(1000); });
    }
  };
  EXPECT_EXIT(outer(), ::testing::ExitedWithCode(3), "in checkpoint of 'step-10.h5'");
}

TEST_F(Blocking, OtherThreadsAreWatchedToo) {
  auto const stuck = [] {
    std::thread writer([] {
      BlockingCall const here("fsync", "a file", 0.2);
      pause();
    });
    writer.join();
  };
  EXPECT_EXIT(stuck(), ::testing::ExitedWithCode(3), "in fsync of 'a file'");
}

// Calls in time, one after the other, together longer than the budget of each: nothing happens.
TEST_F(Blocking, EachCallHasItsOwnBudget) {
  auto const many = [] {
    with_timeout(2.0);
    for (int i = 0; i < 30; ++i) blocking("MPI_Comm_dup", "tp", [] { usleep(100000); });
    std::_Exit(0);
  };
  EXPECT_EXIT(many(), ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
