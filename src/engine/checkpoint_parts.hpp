// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a rank as rectangles of global arrays, wherever its numbers lie: what checkpoints are written from and
// read into.

#include <p3d/io/checkpoint.hpp>

#include <vector>

#include "rank_memory.hpp"

namespace p3d::engine {

/// The parts of the parameters and, on request, of the optimizer's state that this rank owns. Valid as long as `rank`
/// and `memory`.
template <class P>
std::vector<io::CheckpointPart> checkpoint_parts(RankContext& rank, RankMemory<P>& memory, bool optimizer_state);

}  // namespace p3d::engine
