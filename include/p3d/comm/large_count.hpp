// SPDX-License-Identifier: Apache-2.0
#pragma once
// The limit on the length of one MPI call.

#include <cstdint>

namespace p3d::comm {

/// Sets the most elements (of each block) that one MPI call is given; longer operations are split into several calls.
/// The default is the number that makes 1 GiB. Tests lower it to reach the splitting code with short messages. All
/// ranks must set the same number, while no operation is under way; 0 restores the default.
void set_max_count_per_call(std::int64_t elements);

}  // namespace p3d::comm
