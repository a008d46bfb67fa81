// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a stage as the schedule sees them: which versions of them are there to be read, and when.
//
// A version is what an update makes: version 0 are the weights at the program's begin, <stage>STEPv1 makes version 1.
// STEP, at the end of a rank's list, updates all stages of the rank at once and makes no version that anybody reads.
// An action that reads weights needs its version whole in the memory that layers read:
//
//   a stage's home   versions there at the begin   how the newest version comes and goes
//   resident         0                             it remains; OFFLOAD moves it elsewhere for a while, RELOAD back
//   sharded          none: ranks own parts of it   GATHER makes it whole, RELEASE gives that up
//   offloaded        none: it lies elsewhere       RELOAD brings it, OFFLOAD moves it back
//
// The first weight action of a stage says which: GATHER sharded, RELOAD offloaded, any other (or none) resident.
// <stage>STEP writes the newest version at home, in place of the one before; but one that is used later is kept beside
// it, until RELEASE (weight stashing, Harlap et al., arXiv 1806.03377).

#include <p3d/schedule/action.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace p3d::schedule {

enum class WeightHome : std::uint8_t { resident, sharded, offloaded };

/// The home of each stage's weights.
std::vector<WeightHome> weight_homes(Program const& program);

/// The most bytes of whole weights that each rank has at a time, of stages with these bytes of weights.
std::vector<double> peak_weight_bytes(Program const& program, std::vector<double> const& stage_bytes);

/// How often something travels: once a step, or for every microbatch anew.
enum class Every : std::uint8_t { step, microbatch };

/// How state that ranks own in parts travels.
struct Sharding {
  Every gather = Every::step;  ///< weights are made whole: once, or for each F, B and I
  Every reduce = Every::step;  ///< gradients are summed: after the last of a stage, or after each B and W
  /// So many actions that read weights (of any stage of the rank) a GATHER goes ahead of its first reader.
  int ahead = 0;
  /// Every stage becomes offloaded instead: RELOAD and OFFLOAD, and REDUCE remains. Ranks own all of their weights.
  bool offloads = false;
};

/// A pass over a complete program: every stage becomes sharded (Rajbhandari et al., arXiv 1910.02054). Adds GATHER and
/// RELEASE around what reads weights, and puts REDUCE_SCATTER in place of REDUCE. Weights are not released between two
/// readers of a stage in a row.
void shard_weights(Program& program, Sharding const& sharding);

/// An interval in which a buffer is there that is whole only for a while: from before one action of a rank's list until
/// after another.
struct LiveInterval {
  std::size_t begin = 0, end = 0;
};
/// True when something of `a` is there together with something of `b`, in the same list. Both are sorted and disjoint.
bool meet(std::vector<LiveInterval> const& a, std::vector<LiveInterval> const& b);
/// The intervals of each stage that is not resident in which its weights are whole (GATHER to RELEASE, RELOAD to
/// OFFLOAD); those of one rank, or of all.
std::vector<std::vector<LiveInterval>> whole_weights(Program const& program, std::optional<int> rank = {});
/// The intervals of each stage in which the gradients of its weights are whole, from what adds the first to
/// REDUCE_SCATTER or REDUCE; those of one rank, or of all.
std::vector<std::vector<LiveInterval>> whole_gradients(Program const& program, std::optional<int> rank = {});

/// A pass over a forward-only program with the stages of `training`: for every stage that is not resident there, what
/// brings its weights and drops them, once or for each use as in `training`. No two stages have whole weights
/// together that have not in `training`, so the memory in which those lie is enough.
void bring_weights(Program& program, Program const& training);

}  // namespace p3d::schedule
