// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places in one piece of memory for buffers of stages that are there only for a while, as a program says when.

#include <p3d/schedule/weights.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace p3d::plan {

/// The buffers of a rank's stages: each has one place, the same whenever it is there; two that are there at the same
/// time do not overlap.
struct Pool {
  std::int64_t bytes = 0;
  std::map<int, std::int64_t> offsets;  ///< by stage; multiples of 64

  bool operator==(Pool const&) const = default;
};

/// First fit, the largest first. `stages`: of one pipeline rank; `bytes`: of the buffer of each. `programs`: by
/// program, the intervals of all stages.
Pool make_pool(std::vector<int> const& stages, std::map<int, std::int64_t> const& bytes,
               std::vector<std::vector<std::vector<schedule::LiveInterval>>> const& programs);

}  // namespace p3d::plan
