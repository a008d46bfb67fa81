// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operations whose buffer a device still writes or reads when they are started. They get their number at once, but
// begin (their MPI calls, or their place in an engine) when Place::ready returns true: the host goes on meanwhile.
// Operations of one line (the collectives of a communicator; the messages to, or from, one of its ranks) begin in the
// order in which they were started, late or not, because MPI and the engines match them by order; operations of other
// lines are not held up. As with engines, nothing runs in the background: every start, test and wait of this process
// begins what has become ready.
//
// Cost: nothing where nothing is late; else one question for each line with late operations, at every test.

#include <functional>
#include <utility>

#include "internal.hpp"

namespace p3d::comm::detail {

/// True when the operation may begin now: nothing of its line is late, and it is ready. Begins other late operations
/// first.
bool may_begin(Pending const& pending, std::function<bool()> const& ready);
/// Puts the operation behind all that are late.
void begin_later(Pending& pending, std::function<bool()> ready, std::function<void()> begin);

/// Calls `begin` as soon as `ready` (empty: now) and the order allow. `pending` must keep its address until then.
template <class Begin>
void begin_when_ready(Pending& pending, std::function<bool()> ready, Begin&& begin) {
  if (may_begin(pending, ready)) return begin();
  begin_later(pending, std::move(ready), std::forward<Begin>(begin));
}

/// True when no operation that was started before `pending`, on any communicator, is still late.
bool first_of_all(Pending const& pending);
/// Begins all late operations that may begin. True when any did.
bool begin_late_operations();
/// Drops `pending` and the operations after it in its line: they never begin. It serves a request that is abandoned
/// while an exception unwinds.
void give_up_late(Pending const& pending);

}  // namespace p3d::comm::detail
