// SPDX-License-Identifier: Apache-2.0
#pragma once
// A machine as the planner knows it: cluster.toml. Its numbers belong to the machine alone, never to a model, so one
// file serves every plan. inputs/clusters has files of known machines, with a source for each number.
//
// A rank computes on one device. Levels are nested groups of ranks, the closest first: the ranks of a node, then nodes
// of the network. Ranks exchange through the smallest level that holds them all.

#include <p3d/config/config.hpp>
#include <p3d/config/parse.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace p3d::config {

/// [device]: what one rank computes on.
struct Device {
  std::string name;
  /// Operations per second by type, as the maker states them. 0: the device has no such units.
  double fp64 = 0, fp32 = 0, fp16 = 0, bf16 = 0, fp8 = 0;
  double memory = 0;              ///< bytes
  double bandwidth = 0;           ///< bytes per second of the memory, as the maker states it
  double bandwidth_share = 0.85;  ///< the part of it that long kernels reach
  double permute_share = 0.19;    ///< the part that kernels reach which sort the rows of experts
  double half_rate = 1e6;         ///< bytes of the arrays whose kernels reach half of that; longer ones reach more
  double sharers = 1;             ///< ranks that share it: what they compute takes so many times as long
  double launch = 8e-6;           ///< seconds from the launch of one kernel to that of the next, at least
};

/// [gemm]: how fast C[M, N] = A[M, K] B[K, N] is, for any sizes.
struct GemmRates {
  double best = 0.8;              ///< the part of the peak that large GEMMs reach
  double size = 30;               ///< the part is best / (1 + size (1/M + 1/N + 1/K)), in elements
  std::int64_t tile_rows = 128;   ///< rows of the tile of C that one unit computes
  std::int64_t tile_cols = 256;   ///< its columns
  std::int64_t units = 1;         ///< computing at a time: multiprocessors, compute units, cores
  std::int64_t align = 8;         ///< sizes are multiples of it (of twice as much in fp8), or the GEMM takes
  double align_penalty = 1.3;     ///< so many times as long,
  double odd_penalty = 1.9;       ///< or so many times where a size is odd
  double weight_gradient = 0.88;  ///< the rate of GEMMs that add to gradients, against the others
};

/// [[level]]: ranks that exchange over one kind of link.
struct Level {
  std::string name;
  std::int64_t size = 0;        ///< ranks of a group of this level; 0 in the last one: any number
  double bandwidth = 0;         ///< bytes per second that a rank sends while it receives as much
  double latency = 5e-6;        ///< seconds of a step of a collective, or until a message arrives, apart from its bytes
  double message_share = 0.75;  ///< the part of the bandwidth that one message between two ranks reaches
  /// The part of the bandwidth that collectives of so many bytes reach, ascending; linear in log(bytes) between.
  /// Empty: all of it.
  std::vector<std::pair<double, double>> share;
};

struct Cluster {
  std::string name;
  /// The generation of kernels that runs on it, where neither the command line nor plan.kernels names another.
  PlannedKernels kernels = PlannedKernels::flash;
  Device device;
  GemmRates gemm;
  double attention = 0.25;    ///< [attention] best: the part of the peak that attention in one kernel reaches
  std::vector<Level> levels;  ///< the closest first
  double jitter = 0.01;       ///< [jitter] sigma: standard deviation of a rank's time for a step, over the time
  double rank_hour = 0;       ///< [cost] rank_hour: price of a rank for an hour; 0: not known

  /// The peak of a type; 0: the device has no units for it.
  double peak(Precision precision) const;
  /// The closest level that may hold two ranks so far apart.
  Level const& level(std::int64_t distance) const;
  /// Throws base::Error (bad_input) when no level holds so many ranks.
  void require_room(std::int64_t ranks) const;
};

/// Names of the constants of a cluster: "device.bandwidth". Those of the closest level are "level1.latency", ...
std::vector<std::string> constants(Cluster const& cluster);
/// The constant of that name; nothing where there is none. A level may be called by its own name, too.
std::optional<double> constant(Cluster const& cluster, std::string_view name);
/// Sets it. Returns what the file would ask for where the value is out of its range, and "" else.
std::string set_constant(Cluster& cluster, std::string_view name, double value);

/// The cluster as a file that parse_cluster() reads back. `notes` are comments: key ("device.fp32", or "level1.latency"
/// for the closest level) and text.
using ClusterNotes = std::vector<std::pair<std::string, std::string>>;
std::string cluster_toml(Cluster const& cluster, ClusterNotes const& notes = {});

/// Either a cluster (errors empty) or every error that could be found.
struct ClusterResult {
  std::optional<Cluster> cluster;
  std::vector<KeyError> errors;
};
/// Reads cluster.toml. Never throws for a bad file.
ClusterResult parse_cluster_file(std::string const& path);
/// Does the same for a text in memory; `name` stands for the file in messages.
ClusterResult parse_cluster(std::string_view text, std::string const& name);

}  // namespace p3d::config
