// SPDX-License-Identifier: Apache-2.0
#pragma once
// Steps that follow each other without a flush: before a rank has done the last backwards of a step, it does forwards
// of the next ones. A step may do so where its gradients are late, since it then reads weights that are there already:
// those of a stage whose gradients are late by d updates are there d steps early. Sources: PipeDream-2BW, Narayanan et
// al., arXiv 2006.09503, section 3.1, for d = 1 on all stages; PipeDream, Narayanan et al., SOSP 2019, section 3.2, for
// fewer on later stages.
//
// The program of n steps with m microbatches each is that of one step with n m microbatches. It is proved as such and
// cut into steps: a rank's part of step t ends where the rank has made the last of its gradients. Parts are the same
// from the second step on, so that any number of steps is made of few lists. Example: 1F1B on 2 ranks with m = 2 gives
// rank 0 the list 0F1 0B0 0F2 0B1 for a step in the middle, where 0F2 is the first forward of the next step, and 0F0
// came with the step before.

#include <p3d/schedule/valid_program.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace p3d::schedule {

/// The number of steps in the program that is cut, where forwards are so many steps early: the first, two in the middle
/// to compare, and those that have fewer steps behind them.
constexpr int stream_steps(int ahead) { return 3 + ahead; }

/// The slots of microbatches of later steps that are under way when a step ends, by stage and microbatch, counted from
/// the first of the next step.
using Carried = std::map<std::pair<int, int>, int>;

/// The actions of one rank in a step: microbatch i of the step is i, that of the step k steps later is k m + i. REDUCE
/// and STEP come at the end. At the list's begin the microbatches of `in` have been begun, in these slots; at its end
/// those of `out`.
struct StreamPart {
  std::vector<Action> actions;
  Carried in, out;
  /// The messages of this rank, of microbatches of later steps, whose other end alone is in such a list of its rank:
  /// what is to be sent and received, of any numbers, before the next step may begin anew.
  std::vector<Action> unmatched;
};

/// The steps of a run. The slots of two lists that follow each other have other names: what is in slot out[x] of the
/// first one is in slot in[x] of the second one.
struct Stream {
  ValidProgram steps;      ///< stream_steps() of them
  int microbatches;        ///< number in each step
  std::vector<int> ahead;  ///< how many steps early the forwards of each stage are
  /// The lists of each pipeline rank, in the first step after a flush, in one between two others, in the last one
  /// before a flush. Where forwards are several steps early there is no last one: what has begun is given up instead.
  std::vector<StreamPart> first, middle, last;

  /// How many steps early the earliest forwards are.
  int most_ahead() const { return *std::max_element(ahead.begin(), ahead.end()); }
};

/// On the compute actions of several steps with `microbatches` each: a rank does the weight parts (W) of a step before
/// the first backward of the next one, and before its first loss. Moves nothing where other parts of the step come
/// later, too.
void finish_weight_gradients(Program& compute, int microbatches);

/// The names of slots: says which slot of a rank a list of a stream means.
class SlotNames {
public:
  /// The actions of the next list with the slots of the rank; `follows`: behind the one before, else after a flush.
  std::vector<Action> apply(Program const& steps, StreamPart const& part, bool follows);

private:
  std::map<int, std::vector<int>> names_;  ///< the slot of the rank, by stage and slot of the list
  Carried left_;                           ///< StreamPart::out of the list
};

/// Cuts the program of stream_steps(the largest of `ahead`) steps, where a stage may be ahead by so many steps.
/// Nothing, with the reason in `why`, where steps of this schedule do not follow each other so: a rank adds to
/// gradients of a later step, or computes its loss, before those of this one are complete; it is further ahead; or
/// parts are not alike.
std::optional<Stream> make_stream(ValidProgram steps, std::vector<int> ahead, std::string& why);

}  // namespace p3d::schedule
