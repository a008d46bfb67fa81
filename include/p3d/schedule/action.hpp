// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline schedule as data: one list of actions per pipeline rank. Generators write the compute; passes add the
// slots, the messages and the reductions; the executor, the validator, the simulator and the printers all read the same
// list. Plain integers: no MPI, no Kokkos.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::schedule {

/// The kinds of actions. Their text forms are in action.cpp (F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, ...).
/// weights.hpp says what the weight actions mean for a stage. The order has a meaning: query.hpp tells kinds by ranges.
enum class Op : std::uint8_t {
  forward,              ///< F: forward of one microbatch through one stage
  backward,             ///< B: input and weight part together
  backward_input,       ///< I: gradient of the stage's input
  backward_weight,      ///< W: gradients of the stage's weights
  send_activation,      ///< SEND_F: start sending the stage's output to stage + 1
  recv_activation,      ///< RECV_F: post the receive of the stage's input from stage - 1
  send_gradient,        ///< SEND_B: start sending the gradient of the stage's input to stage - 1
  recv_gradient,        ///< RECV_B: post the receive of the gradient of the stage's output from stage + 1
  offload_activations,  ///< OFFLOAD_F: start moving a microbatch's activations out of their slot (offload.hpp)
  reload_activations,   ///< RELOAD_F: start moving them back, into a slot
  reduce_gradients,     ///< REDUCE: the stage's gradients, of a worker, are complete: finish their reduction over dp
  optimizer_step,       ///< STEP: update this rank's parameters
  gather_weights,       ///< GATHER: make the stage's weights whole from the parts that ranks own
  release_weights,      ///< RELEASE: give up a version of the stage's weights
  offload_weights,      ///< OFFLOAD: move a version of the stage's weights out of the memory that layers read
  reload_weights,       ///< RELOAD: move it back
  reduce_scatter_gradients,  ///< REDUCE_SCATTER: sum the stage's gradients over dp, each rank its part
  stage_step,                ///< <stage>STEP: update one stage, which makes a new version of its weights
  embed_forward,             ///< E: a rank's part of the embedding of a microbatch (vocabulary.hpp)
  head_forward,              ///< S: the logits of a rank's part of the vocabulary
  head_backward,             ///< T: their gradient, and the loss
  embed_backward             ///< G: the gradient of the rank's part of the embedding
};

inline constexpr std::size_t num_ops = static_cast<std::size_t>(Op::embed_backward) + 1;

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
/// The word of a kind of action: "F", "SEND_F". Two kinds have the word STEP.
std::string_view word(Op op);
/// Inverse of to_string. Throws base::Error with the offending text.
Action parse_action(std::string_view text);

}  // namespace p3d::schedule
