// SPDX-License-Identifier: Apache-2.0
#pragma once
// A wake-up flag (futex) for each rank of this node, in the memory that they share: a waiting rank sleeps on its own
// flag, and a rank with news sets the flags of the others. Where there is none (no shared memory, no Linux), a sleep
// lasts its full time.

#include <cstddef>
#include <span>
#include <vector>

namespace p3d::comm::detail {

/// Sets the flags up; each lies at the beginning of its rank's memory. Local.
void open_bells(std::vector<std::byte*> const& memory_by_rank, int own_rank);
void close_bells();
/// True between open_bells() and close_bells(), on Linux.
bool have_bells();

/// Wakes the ranks among these (ranks of this node) that sleep. The news must have been written before.
void ring_bells(std::span<int const> node_ranks);

/// Begins one sleep. A sleep has four steps: arm, look once more for news (a rank that has news from now on wakes this
/// one), sleep until woken, but not longer than `microseconds`, and disarm in any case.
void arm_bell();
/// Sleeps until woken, at most `microseconds`. Returns true when another rank has woken this one.
bool sleep_on_bell(int microseconds);
/// Ends the sleep: nobody needs to wake this rank any more.
void disarm_bell();

}  // namespace p3d::comm::detail
