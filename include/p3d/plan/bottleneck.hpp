// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bottleneck of a run, from the shares of its time that were measured: one name, its share, and the key that would
// help. Pure arithmetic.

#include <p3d/config/axes.hpp>

#include <array>
#include <cstddef>
#include <string>

namespace p3d::plan {

/// The kinds of time of a run, of which one is the bottleneck. compute: no other kind matters.
enum class Bottleneck {
  compute,
  pipeline_plan,      ///< ranks wait because the schedule fills and drains the pipeline
  pipeline_messages,  ///< ranks wait for neighbours longer than the schedule says
  slow_rank,          ///< one rank computes longer than the others, which wait for it
  messages,           ///< messages along an axis of the mesh
  data,               ///< loading, and what else the host does between actions
  disk,               ///< steps wait for a checkpoint
  optimizer           ///< the update
};

/// Shares of the time of a run, each from 0 to 1: means over the ranks.
struct TimeShares {
  double pipeline_wait = 0.0;
  double planned_wait = 1.0;  ///< the wait that the schedule has by itself; 1 where that is not known
  double slow_rank = 0.0;     ///< compute of the busiest rank above the mean: so long others wait for it somewhere
  std::array<double, config::all_axes.size()> messages{};  ///< messages, by axis; the pipeline's is not read
  double data = 0.0, disk = 0.0, optimizer = 0.0;
  double& along(config::Axis axis) { return messages[static_cast<std::size_t>(axis)]; }
  double along(config::Axis axis) const { return messages[static_cast<std::size_t>(axis)]; }
};

struct BottleneckFinding {
  Bottleneck what = Bottleneck::compute;
  double share = 0.0;   ///< its share of the time of the run
  config::Axis axis{};  ///< the axis, where messages are the bottleneck
};

/// The largest share is the bottleneck, from 5 % on; below that it is compute, with all that is left. The wait for a
/// slow rank shows up as time in messages on the other ranks, so that these get shorter by it before shares are
/// compared. Example: dp 0.30 with a rank that computes 0.25 longer is a slow rank, 0.25; dp itself is 0.05.
BottleneckFinding find_bottleneck(TimeShares const& shares);

/// The part of the input that decides which change can still help.
struct Setup {
  bool recomputes = false;        ///< backward passes compute activations again
  bool divides_update = true;     ///< memory.shard divides it, or nothing can: there is one replica
  bool overlaps_experts = false;  ///< comm.overlap_experts is set, or cannot be
};

/// One line: "pipeline wait by plan, 31.2 % of the time; what would help: more microbatches (batch.microbatches) ...".
std::string describe(BottleneckFinding const& finding, Setup const& setup);

}  // namespace p3d::plan
