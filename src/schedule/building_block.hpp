// SPDX-License-Identifier: Apache-2.0
#pragma once
// Schedules with two stages per rank in a V, made by repeating a building block (arXiv 2405.15362, section 3): every
// microbatch goes through the same pattern, six time units after the one before. How far neighbouring ranks are apart
// in the pattern decides how long activations live, and so the memory.

#include <p3d/schedule/registry.hpp>

namespace p3d::schedule {

/// Time units (of f = i = w) between neighbouring ranks within a block: on the way from rank 0 to p-1 (forward of the
/// first stage, input part of the second) and on the way back. Their sum over 6 is the share of 1F1B's memory.
struct VOffsets {
  int down = 1;
  int up = 1;
};

/// The block is placed so that no two of its actions meet on a rank and memory is smallest; the weight parts take the
/// free places. Then the repeated pattern is squeezed: a rank goes on as soon as it can and, within the peak memory of
/// the pattern, does later things first where it would wait ("squeezing" and "reordering", section 3.3).
/// `shape.stages_per_rank` is 2.
Program v_program(Shape const& shape, VOffsets offsets);

}  // namespace p3d::schedule
