// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between stages: which rank and tag an action's message has, and the sends and receives of a slot's
// activations and gradients, in the type in which they travel.

#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/schedule/query.hpp>

#include <type_traits>

namespace p3d::engine {

enum MessageKind : int { activation = 0, gradient = 1 };

struct Route {
  int peer, tag;
};
/// One tag per (receiving stage, kind), so that chunks that share a pair of ranks cannot be mixed up.
inline Route route(schedule::Action const& message, schedule::Program const& program) {
  using schedule::Op;
  int const other = schedule::peer_stage(message);
  int const receiver = schedule::is_send(message.op) ? other : message.stage;
  bool const forward = message.op == Op::send_activation || message.op == Op::recv_activation;
  return {schedule::rank_of(program, other), 2 * receiver + (forward ? activation : gradient)};
}

/// The message `what` of the slot of `action` of a stage, which can start now.
template <class P>
comm::Communicator::Message make_message(device::ExecSpace const& exec, model::Stage<P>& stage,
                                         schedule::Action const& action, typename model::Stage<P>::Message what,
                                         schedule::Program const& program) {
  using Message = typename model::Stage<P>::Message;
  using S = typename P::Storage;
  auto const [peer, tag] = route(action, program);
  bool const receives = what == Message::input || what == Message::output_gradient;
  auto const whole = what == Message::input    ? stage.input(action.slot)
                     : what == Message::output ? stage.output(action.slot)
                                               : stage.gradient(action.slot);
#if P3D_16BIT
  if constexpr (std::is_same_v<S, float>) {
    if (stage.narrow_messages()) {
      using device::bfloat16;
      using device::View1;
      auto const narrow = stage.narrow(action.slot, what);
      if (receives) {
        auto message = collectives::message_from<bfloat16>(exec, narrow, peer, tag);
        message.completions.push_back({[exec = exec, narrow, whole] {
          kernels::convert<bfloat16, S>(exec, View1<bfloat16 const>(device::flat(narrow)), device::flat(whole));
        }});
        return message;
      }
      kernels::convert<S, bfloat16>(exec, View1<S const>(device::flat(whole)), device::flat(narrow));
      return collectives::message_to<bfloat16>(exec, narrow, peer, tag);
    }
  }
#endif
  if (receives) return collectives::message_from<S>(exec, whole, peer, tag);
  return collectives::message_to<S>(exec, whole, peer, tag);
}

/// Sends or receives a message of the size of that of `action`, of numbers that mean nothing, and waits for it.
template <class P>
void pass_empty(device::ExecSpace const& exec, comm::Communicator& pipeline, model::Stage<P>& stage,
                schedule::Action const& action, schedule::Program const& program) {
  auto const size = stage.gradient(action.slot);
  auto const [peer, tag] = route(action, program);
  auto const pass_numbers = [&, to = peer, with = tag]<class T>(T) {
    device::Owned2<T> const memory("p3d::engine::empty_message", size.extent(0), size.extent(1));
    device::View2<T> const buffer = memory;
    auto request = schedule::is_send(action.op) ? collectives::start_send<T>(exec, pipeline, buffer, to, with)
                                                : collectives::start_recv<T>(exec, pipeline, buffer, to, with);
    request.wait();
  };
#if P3D_16BIT
  if (stage.narrow_messages()) return pass_numbers(device::bfloat16{});
#endif
  pass_numbers(typename P::Storage{});
}

}  // namespace p3d::engine
