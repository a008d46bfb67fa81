// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several flows of control on one thread ("strands"), which interleave only where the code says so. The executor runs a
// forward and a backward so; layers call rest() where rows of their experts or of ranks of tp are under way, whether or
// not they have come. While they travel, the other strand computes. No order depends on the time: a strand pauses at
// rest() and continues when each of the others has run up to its own rest() or its end.
//
// There is one thread, since neither Kokkos nor a thread level of MPI below MPI_THREAD_MULTIPLE lets two threads
// compute. The implementation uses POSIX contexts (getcontext, makecontext, swapcontext).
//
// Example: works A and B, each with one rest(), run as: first part of A, first part of B, last part of A, last part of
// B.

#include <cstddef>
#include <functional>
#include <vector>

namespace p3d::base {

/// Runs all of `works` to their end, interleaved, beginning with the first. `after_turn` is called with the number of a
/// work each time that it has paused or ended (it books the time). An exception of one work leaves this function at
/// once: the other works are abandoned where they paused, and their stacks are never unwound. Must not be called from
/// inside a work.
void interleave(std::vector<std::function<void()>> works, std::function<void(std::size_t work)> const& after_turn = {});

/// Pauses the work of interleave() that calls it, so that the next work runs. Outside of a work it does nothing.
void rest();

}  // namespace p3d::base
