// SPDX-License-Identifier: Apache-2.0
// The calls of a stage in its own types, and its messages to other stages: which rank and tag an action's message has,
// and the type in which it travels. Example: a stage in fp32 with precision.pipeline = "bf16" rounds its output into
// the slot's narrow buffer, and the receiver converts what arrives when the message is complete.
#include "typed_port.hpp"

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/schedule/query.hpp>

#include <type_traits>

namespace p3d::engine {

using schedule::Action;
using schedule::Op;

namespace {

enum MessageKind : int { activation = 0, gradient = 1 };

struct Route {
  int peer, tag;
};
/// One tag per (receiving stage, kind), so that chunks that share a pair of ranks cannot be mixed up.
Route route(Action const& message, schedule::Program const& program) {
  int const other = schedule::peer_stage(message);
  int const receiver = schedule::is_send(message.op) ? other : message.stage;
  bool const forward = message.op == Op::send_activation || message.op == Op::recv_activation;
  return {schedule::rank_of(program, other), 2 * receiver + (forward ? activation : gradient)};
}

template <class P>
typename model::Stage<P>::Message kind_of(Op op) {
  using Message = typename model::Stage<P>::Message;
  switch (op) {
    case Op::recv_activation: return Message::input;
    case Op::send_activation: return Message::output;
    default: return Message::gradient;
  }
}

}  // namespace

template <class P>
model::StageWeights<P> const& TypedPort<P>::weights(WeightChoice choice) const {
  if (choice.steps_early > 0) return ahead_->at(static_cast<std::size_t>(choice.steps_early) - 1);
  return weights_->weights(choice.version);
}

template <class P>
void TypedPort<P>::forward(WeightChoice choice, int slot, bool training) {
  stage_->forward(weights(choice), slot, training);
}

template <class P>
void TypedPort<P>::backward(Op part, WeightChoice choice, int slot, double loss_scale, Ready const& ready) {
  auto const& w = weights(choice);
  if (part == Op::backward) stage_->backward(w, slot, loss_scale, ready);
  if (part == Op::backward_input) stage_->backward_input(w, slot, loss_scale);
  if (part == Op::backward_weight) stage_->backward_weight(w, slot, ready);
}

template <class P>
void TypedPort<P>::move_weights(Op move, int version) {
  switch (move) {
    case Op::gather_weights: return weights_->gather(version);
    case Op::release_weights: return weights_->release(version);
    case Op::offload_weights: return weights_->offload(version);
    case Op::reload_weights: return weights_->reload(version);
    default: P3D_REQUIRE(false, "GATHER, RELEASE, OFFLOAD and RELOAD move weights");
  }
}

template <class P>
comm::Communicator::Message TypedPort<P>::make_message(Action const& action, schedule::Program const& program) {
  using Message = typename model::Stage<P>::Message;
  auto const what = kind_of<P>(action.op);
  auto const [peer, tag] = route(action, program);
  bool const receives = schedule::is_recv(action.op);
  auto const whole = what == Message::input    ? stage_->input(action.slot)
                     : what == Message::output ? stage_->output(action.slot)
                                               : stage_->gradient(action.slot);
#if P3D_16BIT
  if constexpr (std::is_same_v<S, float>) {
    if (stage_->narrow_messages()) {
      using device::bfloat16;
      using device::View1;
      auto const narrow = stage_->narrow(action.slot, what);
      if (receives) {
        auto message = collectives::message_from<bfloat16>(exec_, narrow, peer, tag);
        message.completions.push_back({[exec = exec_, narrow, whole] {
          kernels::convert<bfloat16, S>(exec, View1<bfloat16 const>(device::flat(narrow)), device::flat(whole));
        }});
        return message;
      }
      kernels::convert<S, bfloat16>(exec_, View1<S const>(device::flat(whole)), device::flat(narrow));
      return collectives::message_to<bfloat16>(exec_, narrow, peer, tag);
    }
  }
#endif
  if (receives) return collectives::message_from<S>(exec_, whole, peer, tag);
  return collectives::message_to<S>(exec_, whole, peer, tag);
}

template <class P>
void TypedPort<P>::pass_empty(comm::Communicator& pipeline, Action const& action, schedule::Program const& program) {
  auto const size = stage_->gradient(action.slot);
  auto const [peer, tag] = route(action, program);
  auto const pass_numbers = [&, to = peer, with = tag]<class T>(T) {
    device::Owned2<T> const memory("p3d::engine::empty_message", size.extent(0), size.extent(1));
    device::View2<T> const buffer = memory;
    auto request = schedule::is_send(action.op) ? collectives::start_send<T>(exec_, pipeline, buffer, to, with)
                                                : collectives::start_recv<T>(exec_, pipeline, buffer, to, with);
    request.wait();
  };
#if P3D_16BIT
  if (stage_->narrow_messages()) return pass_numbers(device::bfloat16{});
#endif
  pass_numbers(S{});
}

#define P3D_INSTANTIATE(P) template class TypedPort<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
