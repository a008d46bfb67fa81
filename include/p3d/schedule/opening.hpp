// SPDX-License-Identifier: Apache-2.0
#pragma once
// The opening of a step: forwards that may run before it is known whether the update of the step before stands, so that
// a step starts early. Source: optimizer post-validation, Qi et al., arXiv 2401.10241, section 4.

#include <p3d/schedule/action.hpp>

#include <cstddef>
#include <vector>

namespace p3d::schedule {

/// The opening of a complete training program is what each rank does before its first backward, or S, T, G: its first
/// actions, of F and E, messages, GATHER and RELEASE. An F is among them only with the F before it and the message from
/// there; an E, and the F that reads it, only with the E of all ranks; where the vocabulary is divided, the last
/// stage's F is not. So no rank waits in its opening for what is in nobody's, and none frees a slot: the openings of
/// all ranks run to their ends by themselves, and then the program goes on as if there were none.
///
/// When its weights turn out to be wrong, the step begins anew. Then some messages have only one of their ends in an
/// opening: a receive that was posted early, a send to a rank that is not as far. `unmatched` are the other ends, in
/// the order of each rank: with them (whatever is sent) all messages are through.
struct Opening {
  std::vector<std::size_t> actions;            ///< number of actions of each rank
  std::vector<std::vector<Action>> unmatched;  ///< messages of each rank
};
Opening opening(Program const& program);

}  // namespace p3d::schedule
