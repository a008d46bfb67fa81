// SPDX-License-Identifier: Apache-2.0
#pragma once
// One piece of memory for the buffers of several stages, each of which is there only for a while, as a program says. An
// example: of two stages whose whole weights are never there at once, both buffers begin at offset 0.

#include <p3d/schedule/weights.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace p3d::plan {

/// The buffers of a rank's stages. A buffer begins at the same offset whenever it is there; two that are there at the
/// same time do not overlap.
struct Pool {
  std::int64_t bytes = 0;
  std::map<int, std::int64_t> offsets;  ///< first byte of each stage's buffer, a multiple of 64

  bool operator==(Pool const&) const = default;
};

/// Lays the buffers out: the largest first, each at the first offset that is free whenever the buffer is there.
/// `stages` are those of one pipeline rank, and `bytes` the sizes of their buffers. `programs` has for each program the
/// intervals of all stages, indexed by stage.
Pool make_pool(std::vector<int> const& stages, std::map<int, std::int64_t> const& bytes,
               std::vector<std::vector<std::vector<schedule::LiveInterval>>> const& programs);

}  // namespace p3d::plan
