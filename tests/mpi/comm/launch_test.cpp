// SPDX-License-Identifier: Apache-2.0
// What the launchers' variables say, what a lonely MPI world is told, and which words count.
#include <p3d/comm/gpu.hpp>
#include <p3d/comm/launch.hpp>

#include <comm/agreement.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

using namespace p3d::comm;

namespace {

constexpr char const* variables[] = {"OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "MV2_COMM_WORLD_RANK",
                                     "MV2_COMM_WORLD_SIZE",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "PALS_RANKID",
                                     "PALS_SIZE",
                                     "JSM_NAMESPACE_RANK",
                                     "JSM_NAMESPACE_SIZE",
                                     "FLUX_TASK_RANK",
                                     "FLUX_JOB_SIZE",
                                     "PMIX_RANK",
                                     "SLURM_PROCID",
                                     "SLURM_NTASKS",
                                     "SLURM_JOB_ID",
                                     "SLURM_STEP_ID",
                                     "SLURM_STEPID",
                                     "SLURM_STEP_NUM_TASKS"};

using Pairs = std::vector<std::pair<char const*, char const*>>;

Launch with(Pairs const& set) {
  for (char const* name : variables) unsetenv(name);
  for (auto const& [name, value] : set) setenv(name, value, 1);
  auto const result = launch();
  for (char const* name : variables) unsetenv(name);
  return result;
}

std::pair<int, int> rank_and_size(Pairs const& set) {
  auto const found = with(set);
  return {found.rank, found.size};
}

using RankSize = std::pair<int, int>;

TEST(Launch, NoLauncherIsOneProcess) {
  EXPECT_EQ(rank_and_size({}), RankSize(0, 0));
  EXPECT_EQ(rank_and_size({{"PMI_RANK", "x"}, {"PMI_SIZE", "4"}}), RankSize(0, 0));
}

TEST(Launch, EachLauncherIsRead) {
  EXPECT_EQ(rank_and_size({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}), RankSize(2, 4));
  EXPECT_EQ(rank_and_size({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}}), RankSize(3, 8));
  EXPECT_EQ(rank_and_size({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}}), RankSize(1, 2));
  EXPECT_EQ(rank_and_size({{"PMIX_RANK", "5"}}), RankSize(5, 0));
}

TEST(Launch, ATaskOfASlurmStepIsOneOfItsTasks) {
  EXPECT_EQ(rank_and_size({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "16"}}),
            RankSize(3, 4));
  EXPECT_EQ(rank_and_size({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), RankSize(0, 4));
  EXPECT_EQ(
      rank_and_size({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}}),
      RankSize(0, 4));
  EXPECT_EQ(rank_and_size({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}), RankSize(2, 4));
}

TEST(Launch, ABatchScriptAndAShellOfAnAllocationAreOneProcess) {
  EXPECT_EQ(rank_and_size({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}), RankSize(0, 1));
  EXPECT_EQ(rank_and_size({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}), RankSize(0, 0));
}

TEST(Launch, TheNearestLauncherCounts) {  // mpiexec starts one daemon as a task on each node
  EXPECT_EQ(rank_and_size({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
            RankSize(5, 8));
  EXPECT_EQ(rank_and_size({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
            RankSize(0, 1));
}

TEST(Launch, ALonelyWorldIsToldWhatToStart) {
  Launch const task{1, 4, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"};
  auto const text = detail::lonely(task, 1, "MPICH Version: 4.0.2");
  EXPECT_NE(text.find("expected: one MPI world of 4 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("SLURM_PROCID = 1, SLURM_STEP_NUM_TASKS = 4"), std::string::npos) << text;
  EXPECT_NE(text.find("--mpi=pmi2"), std::string::npos) << text;
  EXPECT_NE(detail::lonely(task, 1, "Open MPI v4.1.4").find("--mpi=pmix"), std::string::npos);
  EXPECT_NE(detail::lonely(task, 1, "MPI VERSION : CRAY MPICH version 8").find("--mpi=cray_shasta"), std::string::npos);
  Launch const other{0, 2, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
  auto const wrong = detail::lonely(other, 1, "MPICH Version: 4.0.2");
  EXPECT_NE(wrong.find("the mpiexec that belongs to MPICH Version: 4.0.2"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("--mpi"), std::string::npos) << wrong;
}

TEST(Launch, AWorldThatIsWholeIsLetPass) {
  EXPECT_EQ(detail::lonely({1, 4, "PMI_RANK", "PMI_SIZE"}, 4, "MPICH"), "");
  EXPECT_EQ(detail::lonely({0, 1, "SLURM_PROCID", "SLURM_NTASKS"}, 1, "MPICH"), "");
  EXPECT_EQ(detail::lonely({}, 1, "MPICH"), "");
}

// Open MPI counts the zero at its end: what was printed after the name was lost.
TEST(Launch, TheLibrarysNameIsText) {
  auto const name = p3d::comm::library_version();
  EXPECT_FALSE(name.empty());
  EXPECT_EQ(name.find('\0'), std::string::npos) << name;
}

TEST(Launch, OptionsOfKokkosMayDiffer) {
  char const* const words[] = {"p3d", "input.toml", "--kokkos-device-id=1", "run.steps=3"};
  EXPECT_EQ(command_words(4, words), (std::vector<std::string>{"input.toml", "run.steps=3"}));
}

}  // namespace
