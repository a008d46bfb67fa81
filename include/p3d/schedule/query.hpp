// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small questions about actions and programs that the executor, the validator, the simulator and the printers share.

#include <p3d/schedule/action.hpp>

#include <cstddef>

namespace p3d::schedule {

/// F, B, I or W: of a stage.
constexpr bool is_compute(Op op) { return kind_of(op) == OpKind::compute; }
/// E, S, T or G: of a rank's part of the vocabulary, which lies with the rank's first stage.
constexpr bool is_vocabulary(Op op) { return kind_of(op) == OpKind::vocabulary; }
/// F, B, I, W, E, S, T or G: an action that a rank computes.
constexpr bool computes(Op op) { return is_compute(op) || is_vocabulary(op); }
/// SEND_F or SEND_B.
constexpr bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }
/// RECV_F or RECV_B.
constexpr bool is_recv(Op op) { return op == Op::recv_activation || op == Op::recv_gradient; }
constexpr bool is_message(Op op) { return kind_of(op) == OpKind::message; }
/// B or I: reads the gradient of the stage's output and makes the gradient of its input.
constexpr bool makes_input_gradient(Op op) { return op == Op::backward || op == Op::backward_input; }
/// B or W: adds the microbatch to the gradients of the stage's weights.
constexpr bool makes_weight_gradient(Op op) { return op == Op::backward || op == Op::backward_weight; }
/// T or G: adds the microbatch to the gradients of the rank's part of the vocabulary.
constexpr bool makes_vocabulary_gradient(Op op) { return op == Op::head_backward || op == Op::embed_backward; }

/// OFFLOAD_F or RELOAD_F.
constexpr bool moves_activations(Op op) { return kind_of(op) == OpKind::activations; }
/// F, B, I, W, a message, a move of activations, E, S, T or G: the others belong to a stage, and STEP to a rank.
constexpr bool has_microbatch(Op op) { return computes(op) || is_message(op) || moves_activations(op); }
/// GATHER, RELEASE, OFFLOAD or RELOAD.
constexpr bool moves_weights(Op op) { return kind_of(op) == OpKind::weights; }
/// F, B or I, E, S or T: reads the weights of its stage. (W multiplies what F and I left.)
constexpr bool reads_weights(Op op) { return computes(op) && op != Op::backward_weight && op != Op::embed_backward; }
/// REDUCE or REDUCE_SCATTER.
constexpr bool reduces(Op op) { return kind_of(op) == OpKind::reduction; }
/// An action that reads, moves or makes a version of weights.
constexpr bool has_version(Op op) { return is_compute(op) || moves_weights(op) || op == Op::stage_step; }

/// The stage whose weights a stage uses besides its own, -1: none.
inline int lender(Program const& program, int stage) {
  return program.tied && stage + 1 == program.num_stages ? 0 : -1;
}

/// The pipeline rank that holds a stage.
inline int rank_of(Program const& program, int stage) { return program.stage_rank[static_cast<std::size_t>(stage)]; }
/// True when the stage's input comes as a message: there is a previous stage and it lives on another rank.
inline bool input_is_remote(Program const& program, int stage) {
  return stage > 0 && rank_of(program, stage - 1) != rank_of(program, stage);
}
/// True when the stage's output goes out as a message: there is a next stage and it lives on another rank.
inline bool output_is_remote(Program const& program, int stage) {
  return stage + 1 < program.num_stages && rank_of(program, stage + 1) != rank_of(program, stage);
}
/// True when the previous stage exists and lives on the same rank: activations and gradients pass without a message.
inline bool input_is_local(Program const& program, int stage) { return stage > 0 && !input_is_remote(program, stage); }
inline bool output_is_local(Program const& program, int stage) {
  return stage + 1 < program.num_stages && !output_is_remote(program, stage);
}
/// RECV_F, or F where no message brings the input: the action that takes a slot for its microbatch.
inline bool takes_slot(Program const& program, Action const& a) {
  return a.op == Op::recv_activation || (a.op == Op::forward && !input_is_remote(program, a.stage));
}
/// The stages, besides its own, whose slots of its microbatch an action uses. Stages in a row on one rank share memory:
/// an input is the previous one's output (which a stage without layers hands on), and the gradient is worked on where
/// the last one of the row got it.
template <class Visit>
void for_shared_slots(Program const& program, Action const& a, Visit const& visit) {
  for (int s = a.stage; a.op == Op::forward && input_is_local(program, s); --s) visit(s - 1);
  for (int s = a.stage; makes_input_gradient(a.op) && output_is_local(program, s); ++s) visit(s + 1);
}
/// The stages of for_shared_slots(), and the stages before the action's own in the row, one of whose outputs is the
/// input that B and I read. None of them may be offloaded.
template <class Visit>
void for_slots_in_use(Program const& program, Action const& a, Visit const& visit) {
  for_shared_slots(program, a, visit);
  for (int s = a.stage; makes_input_gradient(a.op) && input_is_local(program, s); --s) visit(s - 1);
}
/// True when two actions may interleave (Execution::pairs).
constexpr bool can_pair(Action const& first, Action const& second) {
  return first.op == Op::forward && is_compute(second.op) && second.op != Op::forward &&
         first.microbatch != second.microbatch;
}
/// True when action i of a rank and the one after it are a pair.
inline bool begins_pair(std::vector<Action> const& actions, std::size_t i) {
  return i + 1 < actions.size() && can_pair(actions[i], actions[i + 1]);
}
/// The other one of the pair of action i, or nullptr.
inline Action const* partner(std::vector<Action> const& actions, std::size_t i) {
  if (begins_pair(actions, i)) return &actions[i + 1];
  return i > 0 && begins_pair(actions, i - 1) ? &actions[i - 1] : nullptr;
}

/// The stage at the other end of a message.
constexpr int peer_stage(Action const& action) {
  return action.op == Op::send_activation || action.op == Op::recv_gradient ? action.stage + 1 : action.stage - 1;
}

}  // namespace p3d::schedule
