// SPDX-License-Identifier: Apache-2.0
#pragma once
// Steps that follow each other without a flush: before a rank has done the last backwards of a step, it does forwards
// of the next one. A step may do so where its gradients are late, since the next one then reads weights that are there
// already. Source: PipeDream-2BW, Narayanan et al., arXiv 2006.09503, section 3.1.
//
// The program of four steps with m microbatches each is that of one step with 4 m microbatches. It is proved as such
// and cut into steps: a rank's part of step t ends where the rank has made the last of its gradients. Parts are the
// same from the second step on, so that any number of steps is made of three lists. Example: 1F1B on 2 ranks with m = 2
// gives rank 0 the list 0F1 0B0 0F2 0B1 for a step in the middle, where 0F2 is the first forward of the next step, and
// 0F0 came with the step before.

#include <p3d/schedule/valid_program.hpp>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace p3d::schedule {

/// The number of steps in the program that is cut: the first, two in the middle to compare, the last.
inline constexpr int stream_steps = 4;

/// The slots of microbatches of the next step that are under way when a step ends, by stage and microbatch (of that
/// step).
using Carried = std::map<std::pair<int, int>, int>;

/// The actions of one rank in a step: microbatch i of the step is i, that of the next one is m + i. REDUCE and STEP
/// come at the end. At the list's begin the microbatches of `in` have been begun, in these slots; at its end those of
/// `out`.
struct StreamPart {
  std::vector<Action> actions;
  Carried in, out;
  /// The messages of this rank, of microbatches of the next step, whose other end alone is in such a list of its rank:
  /// what is to be sent and received, of any numbers, before the next step may begin anew.
  std::vector<Action> unmatched;
};

/// The steps of a run. The slots of two lists that follow each other have other names: what is in slot out[x] of the
/// first one is in slot in[x] of the second one.
struct Stream {
  ValidProgram steps;  ///< four steps
  int microbatches;    ///< number in each step
  /// The lists of each pipeline rank, in the first step after a flush, in one between two others, in the last one
  /// before a flush.
  std::vector<StreamPart> first, middle, last;
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

/// Cuts the program of four steps. Nothing, with the reason in `why`, where steps of this schedule do not follow each
/// other so: a rank adds to gradients of the next step, or computes its loss, before those of this one are complete; or
/// parts are not alike.
std::optional<Stream> make_stream(ValidProgram four_steps, std::string& why);

}  // namespace p3d::schedule
