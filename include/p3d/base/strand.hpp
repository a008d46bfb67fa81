// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several flows of control on one thread, which take turns only where the code says so. What one waits for (a message)
// can travel while the other computes, and no order depends on the time: a strand leaves its turn at rest() and gets it
// back when the others have had theirs.
//
// On one thread, since neither Kokkos nor a thread level of MPI below MPI_THREAD_MULTIPLE lets two compute. With POSIX
// contexts (getcontext, makecontext, swapcontext).

#include <cstddef>
#include <functional>
#include <vector>

namespace p3d::base {

/// Runs all of `works` to their end, in turns, beginning with the first. `after_turn` is told whose turn has ended (it
/// books the time). An exception of one leaves at once: the others are abandoned where they rest, their stacks are
/// never unwound. Not from inside a work.
void take_turns(std::vector<std::function<void()>> works, std::function<void(std::size_t work)> const& after_turn = {});

/// In a work of take_turns(): the next work has its turn. Elsewhere it does nothing.
void rest();

}  // namespace p3d::base
