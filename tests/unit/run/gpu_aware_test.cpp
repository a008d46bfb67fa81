// SPDX-License-Identifier: Apache-2.0
// The rule by which MPI is given addresses of GPU memory, with trials that end as the test says.

#include "run/gpu_aware.hpp"

#include <p3d/base/error.hpp>

#include <gtest/gtest.h>

namespace p3d::run {
namespace {

using comm::GpuTrial;
using config::GpuAware;

struct Machine {
  bool nccl = false;
  std::optional<bool> reaches = true;
  std::string library = "MPICH Version: 4.0";
  bool mpi_sums = false;
  GpuTrial messages = GpuTrial::works, sums = GpuTrial::works;
};

struct Answer {
  MessagePath path;
  int messages_tried = 0, sums_tried = 0;
};

Answer ask(GpuAware choice, Machine const& m) {
  Answer answer{};
  answer.path = message_path({.choice = choice,
                              .nccl = m.nccl,
                              .reaches = m.reaches,
                              .library = m.library,
                              .mpi_sums = m.mpi_sums,
                              .try_messages = [&] { return ++answer.messages_tried, m.messages; },
                              .try_sums = [&] { return ++answer.sums_tried, m.sums; }});
  return answer;
}

TEST(GpuAware, OffTriesNothing) {
  auto const answer = ask(GpuAware::off, {.mpi_sums = true});
  EXPECT_FALSE(answer.path.messages);
  EXPECT_EQ(answer.path.reason, "comm.gpu_aware");
  EXPECT_EQ(answer.messages_tried + answer.sums_tried, 0);
}

TEST(GpuAware, AutoGivesMpiNothingBesideNccl) {
  auto const answer = ask(GpuAware::automatic, {.nccl = true});
  EXPECT_FALSE(answer.path.messages);
  EXPECT_EQ(answer.path.reason, "MPI is given no GPU memory beside NCCL");
  EXPECT_EQ(answer.messages_tried, 0);
}

TEST(GpuAware, AutoTrustsNoLibraryThatSaysNothing) {
  EXPECT_EQ(ask(GpuAware::automatic, {.reaches = {}}).path.reason, "MPI does not say what it can do");
  EXPECT_EQ(ask(GpuAware::automatic, {.reaches = false}).path.reason, "MPI says that it does not reach GPU memory");
  EXPECT_EQ(ask(GpuAware::automatic, {.reaches = {}}).messages_tried, 0);
}

TEST(GpuAware, WhatDoesNotWorkIsNotUsed) {
  for (auto result : {GpuTrial::wrong_data, GpuTrial::host_access, GpuTrial::error, GpuTrial::hangs}) {
    auto const answer = ask(GpuAware::automatic, {.mpi_sums = true, .messages = result});
    EXPECT_FALSE(answer.path.messages);
    EXPECT_FALSE(answer.path.sums);
    EXPECT_EQ(answer.path.reason, comm::describe(result));
    EXPECT_EQ(answer.sums_tried, 0);
  }
}

TEST(GpuAware, SumsAreMpisOnlyWhereAskedForAndTried) {
  EXPECT_EQ(ask(GpuAware::automatic, {}).sums_tried, 0);
  EXPECT_TRUE(ask(GpuAware::automatic, {.mpi_sums = true}).path.sums);
  EXPECT_FALSE(ask(GpuAware::automatic, {.mpi_sums = true, .sums = GpuTrial::wrong_data}).path.sums);
}

TEST(GpuAware, OpenMpisSumsAreNeverTried) {
  auto const answer = ask(GpuAware::automatic, {.library = "Open MPI v4.1.4", .mpi_sums = true});
  EXPECT_TRUE(answer.path.messages);
  EXPECT_FALSE(answer.path.sums);
  EXPECT_EQ(answer.sums_tried, 0);
}

TEST(GpuAware, OnIsTriedAlthoughMpiSaysNothing) {
  EXPECT_TRUE(ask(GpuAware::on, {.reaches = {}}).path.messages);
  EXPECT_TRUE(ask(GpuAware::on, {.nccl = true}).path.messages);
}

TEST(GpuAware, OnThatDoesNotWorkIsAnError) {
  try {
    ask(GpuAware::on, {.messages = GpuTrial::host_access});
    FAIL() << "expected an error";
  } catch (base::Error const& error) {
    EXPECT_EQ(error.code(), base::ExitCode::bad_input);
    EXPECT_NE(error.text().found.find("MPICH Version: 4.0"), std::string::npos);
    EXPECT_EQ(error.text().where, "comm.gpu_aware");
  }
}

}  // namespace
}  // namespace p3d::run
