// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bell for each rank of this node, in the memory they share: who waits sleeps on its own, who has news for others
// rings theirs. Where there is none (no shared memory, no Linux), a sleep lasts its full time.

#include <cstddef>
#include <vector>

namespace p3d::comm::detail {

/// The bells lie at the beginning of each rank's memory. Local.
void open_bells(std::vector<std::byte*> const& memory_by_rank, int own_rank);
void close_bells();
bool have_bells();

/// Wakes those of the given ranks of this node that sleep. What they shall see must have been written before.
void ring_bells(std::vector<int> const& node_ranks);

/// One sleep: arm the bell, look once more whether there is news (whoever brings it from now on rings), then sleep
/// until rung, but not longer than `microseconds`; disarm in any case.
void arm_bell();
void sleep_on_bell(int microseconds);
void disarm_bell();

}  // namespace p3d::comm::detail
