// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operations whose buffer a device still writes or reads when they are asked for. They have their number at once, but
// begin (their MPI calls, or their place in an engine) when Place::ready says so: the host goes on meanwhile.
// Operations of one line (the collectives of a communicator; the messages to, or from, one of its ranks) begin in the
// order in which they were asked for, late or not, because MPI and the engines match them by order; others are not held
// up. As with engines, nothing runs in the background: every start, test and wait of this process begins what has
// become ready.
//
// Cost: nothing where nothing is late; else one question for each line with late operations, at every test.

#include <functional>
#include <utility>

#include "internal.hpp"

namespace p3d::comm::detail {

/// Whether the operation may begin now: nothing of its line is late, and it is ready. Begins others first.
bool may_begin(Pending const& pending, std::function<bool()> const& ready);
/// Puts it behind all that are late.
void begin_later(Pending& pending, std::function<bool()> ready, std::function<void()> begin);

/// Calls `begin` as soon as `ready` (empty: now) and the order allow. `pending` stays where it is until then.
template <class Begin>
void begin_when_ready(Pending& pending, std::function<bool()> ready, Begin&& begin) {
  if (may_begin(pending, ready)) return begin();
  begin_later(pending, std::move(ready), std::forward<Begin>(begin));
}

/// Whether nothing that was asked for before `pending`, anywhere, is still late.
bool first_of_all(Pending const& pending);
/// True when any began.
bool begin_late_operations();
/// `pending` and what comes after it in its line never begin: for a request that is given up while an exception
/// unwinds.
void give_up_late(Pending const& pending);

}  // namespace p3d::comm::detail
