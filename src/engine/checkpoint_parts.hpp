// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a rank as rectangles of global arrays, wherever its numbers lie: what checkpoints are written from and
// read into.

#include <p3d/io/checkpoint.hpp>

#include <vector>

#include "rank_memory.hpp"

namespace p3d::engine {

/// The parts of the parameters, and of these arrays of the optimizer's state, that this rank owns. Valid as long as
/// `rank` and `memory`; where gradients are late, until layers read the other version of the weights.
template <class P>
std::vector<io::CheckpointPart> checkpoint_parts(RankContext& rank, RankMemory<P>& memory, config::StateArrays arrays);

}  // namespace p3d::engine
