// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a stage as the schedule sees them: which versions of them are there to be read, and when.
//
// A version is what an update makes: version 0 are the weights at the program's begin, <stage>STEPv1 makes version 1.
// STEP, at the end of a rank's list, updates all stages of the rank at once and makes no version that anybody reads.
// An action that reads weights needs its version whole in the memory that layers read:
//
//   a stage's home   versions there at the begin   how the newest version comes and goes
//   resident         0                             it stays; OFFLOAD moves it away for a while, RELOAD back
//   sharded          none: ranks own parts of it   GATHER makes it whole, RELEASE gives that up
//   offloaded        none: it lies elsewhere       RELOAD brings it, OFFLOAD takes it away
//
// The first weight action of a stage says which: GATHER sharded, RELOAD offloaded, any other (or none) resident.
// <stage>STEP writes the newest version at home, in place of the one before; but one that is used later stays beside
// it, until RELEASE (weight stashing, Harlap et al., arXiv 1806.03377).

#include <p3d/schedule/action.hpp>

#include <cstdint>
#include <vector>

namespace p3d::schedule {

enum class WeightHome : std::uint8_t { resident, sharded, offloaded };

/// By stage.
std::vector<WeightHome> weight_homes(Program const& program);

/// Of each action of a rank: whether a <stage>STEP leaves the version before it in place, because a later action names
/// it.
std::vector<bool> keeps_older_versions(Program const& program, int rank);

/// The most bytes of whole weights that each rank has at a time, of stages with these bytes of weights.
std::vector<double> peak_weight_bytes(Program const& program, std::vector<double> const& stage_bytes);

/// How often weights that ranks own in parts are made whole: once for a step, or anew for each F, B and I.
enum class GatherEvery : std::uint8_t { step, microbatch };

/// A pass over a complete program: every stage becomes sharded (ZeRO-3, Rajbhandari et al., arXiv 1910.02054). Adds
/// GATHER and RELEASE around what reads weights, and turns REDUCE into REDUCE_SCATTER.
void shard_weights(Program& program, GatherEvery every);

/// A pass over a forward-only program: for a stage that is not resident, what brings its weights before its first F and
/// takes them away after its last one.
void bring_weights(Program& program, std::vector<WeightHome> const& homes);

}  // namespace p3d::schedule
