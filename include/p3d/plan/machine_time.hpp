// SPDX-License-Identifier: Apache-2.0
#pragma once
// Seconds of single operations on a machine: a GEMM, a kernel that waits for memory, a collective, a message. Formulas
// on the numbers of cluster.toml alone; docs/plan.md explains them.

#include <p3d/config/cluster.hpp>

#include <cstdint>

namespace p3d::plan {

/// The type that a GEMM computes in, and what its operands are.
struct GemmType {
  double peak = 0;        ///< operations per second of the device, in this type
  bool gradient = false;  ///< adds to a gradient (GemmRates::weight_gradient)
  bool fp8 = false;       ///< operands of 8 bits
};

/// Seconds of C[M, N] += A[M, K] B[K, N]: 2 M N K operations at
///   peak best / (1 + size (1/M + 1/N + 1/K)) waves.
/// The tiles of C are computed by `units` at a time: w = tiles / units, and the last of ceil(w) waves is not full. Half
/// of that loss is softened by splitting K: waves = (1 + w / ceil(w)) / 2. Where a size is odd the GEMM takes
/// odd_penalty times as long, else where one is no multiple of `align` align_penalty times. Sizes are taken without
/// their fractions. `count` GEMMs of these sizes in one launch share the waves.
double gemm_seconds(config::Cluster const& cluster, GemmType type, double m, double n, double k, double count = 1);

/// Seconds in which a kernel reads and writes `bytes` in arrays of `each` bytes: short arrays do not reach the
/// bandwidth, bandwidth_share / (1 + 1 MB / each).
double memory_seconds(config::Cluster const& cluster, double bytes, double each);

/// A group of ranks along axes of the mesh: so many, each `stride` ranks from the next.
struct RankGroup {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

/// Seconds of collectives of `bytes`, the size of the whole tensor. Ring or tree, whichever starts quicker:
///   all-reduce  min(2 (n - 1), 2 log2 n) latency + 2 (n - 1) / n bytes / bandwidth
///   gather      log2 n latency + (n - 1) / n bytes / bandwidth, of a reduce-scatter too
///   all-to-all  (n - 1) latency + (n - 1) / n bytes / bandwidth, `bytes` that each rank sends
/// The bandwidth is that of the narrowest level that the group crosses, times its share at this size. Where members of
/// the group share a node, one ring enters and leaves it, so each of its members' links carries a part: the level
/// counts as many times wider, but not for an all-to-all.
double all_reduce_seconds(config::Cluster const& cluster, RankGroup group, double bytes);
double gather_seconds(config::Cluster const& cluster, RankGroup group, double bytes);
/// One step of a ring, in which each rank sends `bytes` to the next.
double ring_step_seconds(config::Cluster const& cluster, RankGroup group, double bytes);
double all_to_all_seconds(config::Cluster const& cluster, RankGroup group, double bytes);

/// Seconds of one message between two ranks that are `distance` apart.
double message_seconds(config::Cluster const& cluster, std::int64_t distance, double bytes);

}  // namespace p3d::plan
