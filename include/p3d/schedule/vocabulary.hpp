// SPDX-License-Identifier: Apache-2.0
#pragma once
// Vocabulary parallelism over the pipeline (Yeung et al., arXiv 2411.05288): every pipeline rank holds a part of the
// rows of the embedding and of the output layer, so that the stages with layers are even. Per microbatch each rank has
//
//   E   its part of the embedding
//         waits for   its buffer
//         then gives  SUM, an all-reduce, to F of stage 0
//   S   the logits of its part, and its part of the loss
//         waits for   OUTPUT, a broadcast by F of the last stage
//         then gives  PARTS, an all-gather
//   T   the loss; gradients of its logits, of its rows and of the input
//         waits for   PARTS
//         then gives  INPUT_GRADIENT, an all-reduce, to B or I of the last stage
//   G   the gradient of its part of the embedding
//         waits for   GRADIENT, a broadcast by B or I of stage 0
//
// Each kind of exchange has a communicator of its own, on which the microbatches follow each other. E, S, T and G carry
// the number of the rank's first stage, with whose weights the part lies, and a slot: buffers of E, of S and T
// together, and of G are used in turn. A rank asks for a broadcast as soon as the buffer for it is free: at the
// program's begin, and after the T (the G) that read it last. Messages of a microbatch: 3 all-reduces or broadcasts
// forward and 2 backward of s b h elements (SUM, OUTPUT, INPUT_GRADIENT; GRADIENT), and 3 s b numbers of PARTS.

#include <p3d/schedule/query.hpp>

#include <array>
#include <optional>
#include <vector>

namespace p3d::schedule {

/// The exchanges between the ranks of a pipeline.
enum class VocabularyExchange { sum, output, parts, input_gradient, gradient };
inline constexpr std::array<char const*, 5> vocabulary_exchanges{"SUM", "OUTPUT", "PARTS", "INPUT_GRADIENT",
                                                                 "GRADIENT"};

/// The exchange whose result an action of a stage reads: F of the first stage that of E, B or I of the last one that of
/// T. Empty: the action reads none, as always where embedding and output layer belong to stages.
inline std::optional<VocabularyExchange> exchange_read(Program const& program, Action const& action) {
  if (!program.divides_vocabulary) return {};
  if (action.op == Op::forward && action.stage == 0) return VocabularyExchange::sum;
  bool const last = action.stage + 1 == program.num_stages;
  if (makes_input_gradient(action.op) && last) return VocabularyExchange::input_gradient;
  return {};
}
/// The exchange that shares the result of an action of a stage: that of F of the last stage with S, that of B or I of
/// the first one with G. Empty: none, as with exchange_read().
inline std::optional<VocabularyExchange> exchange_given(Program const& program, Action const& action) {
  if (!program.divides_vocabulary) return {};
  if (action.op == Op::forward && action.stage + 1 == program.num_stages) return VocabularyExchange::output;
  if (makes_input_gradient(action.op) && action.stage == 0) return VocabularyExchange::gradient;
  return {};
}

/// Times of a microbatch, in any unit, that decide the order of actions.
struct StageTimes {
  double forward = 1, input = 1, weight = 1;
};
struct VocabularyTimes {
  std::vector<StageTimes> stages;  ///< times of each stage
  double embed = 0;                ///< E, and G
  double head_forward = 1, head_backward = 2;
  double exchange = 0;  ///< from the end of an action to what waits for its result elsewhere
};

/// The actions that a rank prefers when it could do several things. S and T come before either.
enum class VocabularyOrder { forwards_first, backwards_first };

/// A pass over a compute-only program: adds E, S, T and G, and orders each rank's actions anew. The forwards of a rank
/// keep their order among themselves, and so do the input parts and the weight parts. Ranks do what they can as soon as
/// they can, by these times; a rank has at most `ahead` microbatches in flight more than it had. It always ends: of the
/// actions in the old order, the first that is not done can be done. With `ahead` 1 the simulated 1F1B of 4 to 16 ranks
/// is busier than one with even stages and no vocabulary, whose bubble S and T partly fill.
///
/// `tied`: the embedding and the output layer are one matrix, to whose gradient both T and G add. The order in which a
/// rank executes these then follows from `compute` and `ahead` alone, so that no bit of the sum depends on `times` or
/// `order`: activations that are recomputed make a backward longer, and may change nothing else.
void divide_vocabulary(Program& compute, VocabularyTimes const& times, VocabularyOrder order, int ahead = 1,
                       bool tied = false);

/// Buffers of a rank: of E, of S and T, and of G.
struct VocabularySlots {
  int embed = 0, head = 0, gradient = 0;
  bool operator==(VocabularySlots const&) const = default;
};
inline constexpr VocabularySlots vocabulary_slots{2, 2, 2};
/// The number of buffers that E, S, T or G uses in turn.
constexpr int num_vocabulary_slots(Op op) {
  return op == Op::embed_forward    ? vocabulary_slots.embed
         : op == Op::embed_backward ? vocabulary_slots.gradient
                                    : vocabulary_slots.head;
}
/// The buffer of E, S, T or G of a microbatch.
constexpr int vocabulary_slot(Op op, int microbatch) { return microbatch % num_vocabulary_slots(op); }

/// A rank's first stage, which E, S, T and G name.
int first_stage_of(Program const& program, int rank);

/// For each action of a rank's list, true where it completes gradients that the next reduction sums: the last B or W
/// before it those of the stage, the last T or G those of the rank's part of the vocabulary. A reduction completes
/// those of the part itself where neither has run since the one before.
std::vector<bool> completes_gradients(Program const& program, int rank, std::vector<Action> const& actions);

}  // namespace p3d::schedule
