// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages that start together (P2p): a send with a receive, or all messages of a step in one round.
//
// A round is one exchange of every rank with its neighbours on the ring of pipeline ranks: at most one message to, and
// one from, each of them. All ranks have the same number of rounds and start them in the same order; on a rank a round
// is over when its neighbours have started it, too. Rounds come from a clock: every action that is no message takes one
// step of it, an action begins when what it needs is there, and a message belongs to the round of the step at whose
// begin both of its ends have been reached. So what a rank does before round r needs rounds before r alone, and no rank
// waits in a circle.
//
// Example: 1F1B on 2 ranks with 3 microbatches (and a slot more than it needs) has five rounds, for what 0F0, 0F1 and
// 1B0 make, for what 0F2 and 1B1 make, and for what 1B2 makes.

#include <p3d/schedule/action.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace p3d::schedule {

struct Execution;
enum class Pass : std::uint8_t;

/// For each action of a list the place of the message that starts in one call with it (P2p::batched); -1: none. The two
/// are a send and a receive with the same peer. Only messages lie between them, none of which touches the slot of the
/// first one; the receive does not write what the send reads.
std::vector<int> same_call(Program const& program, std::vector<Action> const& actions);

/// A round as one rank sees it.
struct Round {
  std::vector<std::size_t> messages;  ///< places of its messages in the list of the rank; perhaps none
  /// The round may start before the action of this index, when all its messages have been reached.
  std::size_t from = 0;
  /// The round starts before the action of this index at the latest.
  std::size_t by = 0;
};

/// The rounds of a program, by rank. All ranks have the same number of them.
struct Rounds {
  std::vector<std::vector<Round>> ranks;
  bool periodic = false;  ///< the last rank and the first one are neighbours, too
};

/// The rounds of a complete program that runs to its end under `execution`. Nothing, with the reason in `why`, where
/// two ranks exchange messages that are no neighbours, or where no clock gives rounds.
std::optional<Rounds> find_rounds(Program const& program, Execution const& execution, Pass pass, std::string& why);

}  // namespace p3d::schedule
