// SPDX-License-Identifier: Apache-2.0
// The smallest of the limits that a machine sets, read from files as Linux writes them.

#include "support/temp_dir.hpp"

#include <p3d/engine/memory_limits.hpp>

#include <gtest/gtest.h>

namespace p3d::engine {
namespace {

constexpr char const* meminfo = "MemTotal:       16384000 kB\nMemFree:         1000000 kB\n";

TEST(MemoryLimit, IsTheMachinesWhereNothingElseIs) {
  test::TempDir root;
  root.write("proc/meminfo", meminfo);
  auto const limit = memory_limit(root.path().string());
  EXPECT_EQ(limit.bytes, 16384000LL * 1024);
  EXPECT_EQ(limit.what, "MemTotal");
}

TEST(MemoryLimit, IsTheSmallestOfAllGroupsAbove) {
  test::TempDir root;
  root.write("proc/meminfo", meminfo);
  root.write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  root.write("sys/fs/cgroup/memory.max", "max\n");
  root.write("sys/fs/cgroup/slurm/memory.max", "8000000000\n");
  root.write("sys/fs/cgroup/slurm/job_7/memory.max", "4000000000\n");
  root.write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  auto const limit = memory_limit(root.path().string());
  EXPECT_EQ(limit.bytes, 4000000000);
  EXPECT_TRUE(limit.what.ends_with("/slurm/job_7/memory.max")) << limit.what;
}

TEST(MemoryLimit, KnowsTheOlderGroups) {
  test::TempDir root;
  root.write("proc/meminfo", meminfo);
  root.write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job\n3:cpuset:/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000\n");
  EXPECT_EQ(memory_limit(root.path().string()).bytes, 1000000);
}

TEST(MemoryLimit, IsUnknownWithoutAnyFile) {
  test::TempDir root;
  EXPECT_EQ(memory_limit(root.path().string()).bytes, 0);
}

}  // namespace
}  // namespace p3d::engine
