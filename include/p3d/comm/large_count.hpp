// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages longer than one MPI call should carry.

#include <cstdint>

namespace p3d::comm {

/// The most elements (of each block) that one MPI call is given; longer operations are split into several. By default
/// what makes 1 GiB. Tests lower it to walk the splitting path with short messages. The same on all ranks; set while no
/// operation is under way; 0 restores the default.
void set_max_count_per_call(std::int64_t elements);

}  // namespace p3d::comm
