// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts what this process allocates, by any library.

#include <cstddef>

namespace p3d::fuzz {

struct Allocations {
  std::size_t largest = 0;  ///< bytes of one allocation
  std::size_t most = 0;     ///< bytes that were held at one time, beyond those at the start
};

/// From now on.
void count_allocations();
Allocations stop_counting();

}  // namespace p3d::fuzz
