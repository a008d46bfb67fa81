// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline schedule as data: one list of actions per pipeline rank. Generators write the compute; passes add the
// slots, the messages and the reductions; the executor, the validator, the simulator and the printers all read the same
// list. Plain integers: no MPI, no Kokkos.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::schedule {

/// The thing that an action belongs to: it says which numbers an action has, and who looks at it.
enum class OpKind : std::uint8_t {
  compute,      ///< a microbatch of a stage
  message,      ///< a microbatch between a stage and its neighbour
  activations,  ///< the slot of a microbatch of a stage
  reduction,    ///< the gradients of a stage
  rank_step,    ///< a rank
  weights,      ///< a version of the weights of a stage
  stage_step,   ///< a stage
  vocabulary    ///< a microbatch of a rank's part of the vocabulary, which lies with the rank's first stage
};

// The table of operations: ROW(name, word of the text form, kind, what it does). Enum, words, kinds, the questions of
// query.hpp and `p3d schedule show --actions` come from it. What an operation needs and gives stands in graph.cpp.
#define P3D_OPS(ROW)                                                                                             \
  ROW(forward, "F", compute, "forward of one microbatch through one stage")                                      \
  ROW(backward, "B", compute, "backward: input and weight part together")                                        \
  ROW(backward_input, "I", compute, "backward: gradient of the stage's input")                                   \
  ROW(backward_weight, "W", compute, "backward: gradients of the stage's weights")                               \
  ROW(send_activation, "SEND_F", message, "start to send the stage's output to the next stage")                  \
  ROW(recv_activation, "RECV_F", message, "post the receive of the stage's input from the stage before")         \
  ROW(send_gradient, "SEND_B", message, "start to send the gradient of the stage's input to the stage before")   \
  ROW(recv_gradient, "RECV_B", message, "post the receive of the gradient of the stage's output from the next")  \
  ROW(offload_activations, "OFFLOAD_F", activations, "start to move a microbatch's activations out of the slot") \
  ROW(reload_activations, "RELOAD_F", activations, "start to move them back, into a slot")                       \
  ROW(reduce_gradients, "REDUCE", reduction, "finish the sum of the stage's gradients over replicas")            \
  ROW(optimizer_step, "STEP", rank_step, "update all parameters of the rank")                                    \
  ROW(gather_weights, "GATHER", weights, "make the stage's weights whole from the parts that ranks own")         \
  ROW(release_weights, "RELEASE", weights, "give up a version of the stage's weights")                           \
  ROW(offload_weights, "OFFLOAD", weights, "move the stage's weights out of the memory that layers read")        \
  ROW(reload_weights, "RELOAD", weights, "move them back")                                                       \
  ROW(reduce_scatter_gradients, "REDUCE_SCATTER", reduction, "sum the stage's gradients, each rank its part")    \
  ROW(stage_step, "STEP", stage_step, "update one stage, which makes a new version of its weights")              \
  ROW(embed_forward, "E", vocabulary, "the rank's part of the embedding")                                        \
  ROW(head_forward, "S", vocabulary, "the logits of the rank's part of the vocabulary")                          \
  ROW(head_backward, "T", vocabulary, "their gradient, and the loss")                                            \
  ROW(embed_backward, "G", vocabulary, "the gradient of the rank's part of the embedding")

enum class Op : std::uint8_t {
#define P3D_OP_NAME(name, word, kind, text) name,
  P3D_OPS(P3D_OP_NAME)
#undef P3D_OP_NAME
};

/// A row of the table.
struct OpRow {
  std::string_view word;
  OpKind kind;
  std::string_view text;
};
inline constexpr std::array op_rows{
#define P3D_OP_ROW(name, word, kind, text) OpRow{word, OpKind::kind, text},
    P3D_OPS(P3D_OP_ROW)
#undef P3D_OP_ROW
};
inline constexpr std::size_t num_ops = op_rows.size();

/// The kind of an operation; of one that is not in the table, which the validator refuses: that with the fewest
/// numbers.
constexpr OpKind kind_of(Op op) {
  auto const row = static_cast<std::size_t>(op);
  return row < num_ops ? op_rows[row].kind : OpKind::rank_step;
}

/// One action. `microbatch` and `slot` are -1 where they mean nothing. A slot is a set of activation buffers of a
/// stage: it is taken by the first action that needs it (recv_activation, or forward on stage 0) and free after the
/// last one; offloaded activations have one before OFFLOAD_F and maybe another after RELOAD_F. `version`: of the
/// stage's weights, that a compute action reads, a weight action moves and <stage>STEP makes; 0 are the weights at the
/// program's begin.
struct Action {
  Op op = Op::forward;
  int stage = 0;
  int microbatch = -1;
  int slot = -1;
  int version = 0;
  bool operator==(Action const&) const = default;
};

/// The schedule of one training step.
struct Program {
  int num_stages = 0;
  int num_ranks = 0;  ///< pipeline ranks; stage s lives on rank stage_rank[s]
  int num_microbatches = 0;
  std::vector<int> stage_rank;
  std::vector<std::vector<Action>> ranks;  ///< actions of each pipeline rank, in order
  std::vector<int> num_slots;              ///< per stage, set by the slot pass
  /// The last stage reads the weights of stage 0, on its rank, too and adds to their gradients (tied embeddings). Where
  /// both have a replica of these it is false.
  bool tied = false;
  /// The vocabulary is divided over the ranks (vocabulary.hpp): every rank has an E, S, T and G of each microbatch.
  bool divides_vocabulary = false;
  /// The gradients of so many workers (comm.workers) are reduced one after the other: each REDUCE of a stage takes
  /// those of its worker away. With 1, whole gradients stay where they are, and a second REDUCE would add sums up.
  int workers = 1;
  bool operator==(Program const&) const = default;
};

/// "2F0", "3B1@2" (slot 2), "3B1v1@2" (with version 1 of the weights), "1SEND_F4", "0REDUCE", "2GATHER", "2STEPv1",
/// "STEP". Version 0 is not written.
std::string to_string(Action const& action);
/// The word of an operation: "F", "SEND_F". Two of them have the word STEP.
constexpr std::string_view word(Op op) { return op_rows[static_cast<std::size_t>(op)].word; }
/// Inverse of to_string. Throws base::Error with the offending text.
Action parse_action(std::string_view text);
/// The table for people: a line for each operation, with its text form and what it does.
std::string actions_text();

}  // namespace p3d::schedule
