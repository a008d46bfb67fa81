// SPDX-License-Identifier: Apache-2.0
// Seconds of single operations, against numbers worked out by hand on a machine of round numbers.
#include <p3d/plan/machine_time.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {
using namespace p3d;

/// Nodes of 4 ranks; a rank has 1e12 operations, 1e9 bytes of memory, 100 GB/s inside a node and 10 GB/s outside.
config::Cluster machine() {
  config::Cluster c;
  c.device = {.name = "d", .bf16 = 1e12, .memory = 1e9, .bandwidth = 1e12, .bandwidth_share = 0.5};
  c.gemm = {.best = 0.5, .size = 0, .tile_rows = 100, .tile_cols = 100, .units = 10, .align = 4};
  c.levels = {{.name = "node", .size = 4, .bandwidth = 100e9, .latency = 1e-6, .message_share = 0.5, .share = {}},
              {.name = "network", .size = 0, .bandwidth = 10e9, .latency = 10e-6, .message_share = 1, .share = {}}};
  return c;
}

TEST(MachineTime, GemmsByWaves) {
  auto c = machine();
  // 10 x 10 tiles in 10 full waves: 2 x 1000^3 operations at half of 1e12.
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 1000, 1000, 1000), 2e9 / 5e11);
  // 11 x 1 tiles: 1.1 waves of 2, and half of that loss counts.
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 1100, 100, 1000), 2.2e8 / (5e11 * (0.5 + 0.5 * 1.1 / 2)));
  // Eleven GEMMs of one tile are the same waves.
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 100, 100, 1000, 11), 2.2e8 / (5e11 * (0.5 + 0.5 * 1.1 / 2)));
  c.gemm.size = 100;  // 1 + 100 (3 / 1000)
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 1000, 1000, 1000), 1.3 * 2e9 / 5e11);
  EXPECT_EQ(plan::gemm_seconds(c, {1e12}, 0, 1000, 1000), 0);
}

TEST(MachineTime, GemmsOfAwkwardSizes) {
  auto c = machine();
  double const plain = plan::gemm_seconds(c, {1e12}, 1000, 1000, 1000) / 1e9;
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 1000, 1000, 998) / (1e6 * 998), plain * c.gemm.align_penalty);
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12}, 1000, 1000, 999) / (1e6 * 999), plain * c.gemm.odd_penalty);
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12, true}, 1000, 1000, 1000), plain * 1e9 / c.gemm.weight_gradient);
  // In fp8 sizes are multiples of twice as much.
  EXPECT_DOUBLE_EQ(plan::gemm_seconds(c, {1e12, false, true}, 1000, 1000, 1004) / (1e6 * 1004),
                   plain * c.gemm.align_penalty);
}

TEST(MachineTime, MemoryOfShortArrays) {
  auto const c = machine();
  EXPECT_DOUBLE_EQ(plan::memory_seconds(c, 1e9, 1e6), 2 * 1e9 / 5e11);  // half of the share that long arrays have
  EXPECT_DOUBLE_EQ(plan::memory_seconds(c, 0, 1), 0);
}

TEST(MachineTime, CollectivesOfANode) {
  auto const c = machine();
  EXPECT_DOUBLE_EQ(plan::all_reduce_seconds(c, {4, 1}, 1e9), 4e-6 + 1.5 * 1e9 / 100e9);
  EXPECT_DOUBLE_EQ(plan::gather_seconds(c, {4, 1}, 1e9), 2e-6 + 0.75 * 1e9 / 100e9);
  EXPECT_DOUBLE_EQ(plan::all_to_all_seconds(c, {4, 1}, 1e9), 3e-6 + 0.75 * 1e9 / 100e9);
  EXPECT_DOUBLE_EQ(plan::ring_step_seconds(c, {4, 1}, 1e9), 1e-6 + 1e9 / 100e9);
  EXPECT_EQ(plan::all_reduce_seconds(c, {1, 1}, 1e9), 0);
}

TEST(MachineTime, ARingEntersEachNodeOnce) {
  auto const c = machine();
  // 8 neighbouring ranks: four of each node carry the ring's two directions between nodes, 40 GB/s.
  EXPECT_DOUBLE_EQ(plan::all_reduce_seconds(c, {8, 1}, 1e9), 6 * 10e-6 + 1.75 * 1e9 / 40e9);
  // Every second rank: two of each node.
  EXPECT_DOUBLE_EQ(plan::all_reduce_seconds(c, {8, 2}, 1e9), 6 * 10e-6 + 1.75 * 1e9 / 20e9);
  // One of each node: its own link.
  EXPECT_DOUBLE_EQ(plan::all_reduce_seconds(c, {8, 4}, 1e9), 6 * 10e-6 + 1.75 * 1e9 / 10e9);
  // In an all-to-all every rank sends over its own link.
  EXPECT_DOUBLE_EQ(plan::all_to_all_seconds(c, {8, 1}, 1e9), 7 * 10e-6 + 0.875 * 1e9 / 10e9);
}

TEST(MachineTime, SharesByLength) {
  auto c = machine();
  c.levels[0].share = {{1e6, 0.1}, {1e8, 0.9}};
  auto const rate = [&](double bytes) { return bytes / (plan::ring_step_seconds(c, {4, 1}, bytes) - 1e-6); };
  EXPECT_NEAR(rate(1e5), 1e9, 1) << "as long as for 1 MB";
  EXPECT_NEAR(rate(1e7), 50e9, 1) << "half way between, by the logarithm";
  EXPECT_NEAR(rate(1e9), 90e9, 1);
  // Each of four ranks sends three messages, of a quarter of the bytes each.
  EXPECT_DOUBLE_EQ(plan::all_to_all_seconds(c, {4, 1}, 4e7), 3e-6 + 0.75 * 4e7 / 50e9);
}

TEST(MachineTime, Messages) {
  auto const c = machine();
  EXPECT_DOUBLE_EQ(plan::message_seconds(c, 3, 1e9), 1e-6 + 1e9 / 50e9);
  EXPECT_DOUBLE_EQ(plan::message_seconds(c, 4, 1e9), 10e-6 + 1e9 / 10e9);
}

}  // namespace
