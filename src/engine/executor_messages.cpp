// SPDX-License-Identifier: Apache-2.0
// The part of the executor that starts the messages between stages, each when its buffer is free, in the way of
// pipeline.p2p (message_start.hpp). A receive into a buffer that is still on its way is deferred; a round is started as
// soon as its buffers are free, and at the latest where other ranks may wait for it.

#include <p3d/base/error.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/schedule/query.hpp>

#include "activation_store.hpp"
#include "program_run.hpp"
#include "vocabulary_actions.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace p3d::engine {

using schedule::Action;
using schedule::Op;

void Executor::free_buffer(Action const& receive, ProgramRun const& run) {
  if (receive.op == Op::recv_activation) return take_slot(receive, run);
  timed_wait(messages(receive).send_gradient, Op::send_gradient, receive, run);
  if (store_ && store_->writes_gradient(receive.stage, receive.slot))
    wait_for_store(Op::offload_activations, receive.stage, receive, run);
}

bool Executor::buffer_is_free(Action const& receive) {
  auto& m = messages(receive);
  if (receive.op == Op::recv_gradient)
    return m.send_gradient.test() && !(store_ && store_->writes_gradient(receive.stage, receive.slot));
  return m.send_activation.test() && m.send_gradient.test() && !(store_ && store_->writes(receive.stage, receive.slot));
}

SlotMessage Executor::slot_message(Action const& action, ProgramRun const& run) {
  auto& m = messages(action);
  auto const of = [&](comm::Request& request) -> SlotMessage {
    return {stage(action).make_message(action, run.program), &request};
  };
  switch (action.op) {
    case Op::recv_activation: shape_slot(action, run); return of(m.recv_activation);
    case Op::recv_gradient: return of(m.recv_gradient);
    case Op::send_activation: return of(m.send_activation);
    case Op::send_gradient: return of(m.send_gradient);
    default: P3D_REQUIRE(false, "only SEND and RECV have a message");
  }
}

void Executor::receive_or_defer(Action const& action, Call call, ProgramRun const& run) {
  bool const behind =
      std::any_of(deferred_.begin(), deferred_.end(), [&](Action const& d) { return d.op == action.op; });
  if (!run.waits_inside && (behind || !buffer_is_free(action))) {
    start_.release();
    deferred_.push_back(action);
    return;
  }
  free_buffer(action, run);
  start_.start(slot_message(action, run), call);
}

void Executor::post_deferred(ProgramRun const& run) {
  while (!deferred_.empty() && buffer_is_free(deferred_.front())) {
    start_.start(slot_message(deferred_.front(), run));
    deferred_.pop_front();
  }
}

void Executor::flush_deferred(ProgramRun const& run) {
  auto const due = std::exchange(deferred_, {});  // the waits below have nothing left to flush
  for (Action const& action : due) {
    free_buffer(action, run);
    start_.start(slot_message(action, run));
  }
}

void Executor::start_rounds(std::size_t next, ProgramRun& run) {
  auto const& actions = *run.actions;
  for (; run.rounds_started < run.rounds->size(); ++run.rounds_started) {
    auto const& round = (*run.rounds)[run.rounds_started];
    if (round.from > next) return;
    bool const must = round.by <= next;
    auto const busy = [&](std::size_t i) { return schedule::is_recv(actions[i].op) && !buffer_is_free(actions[i]); };
    if (!must && std::any_of(round.messages.begin(), round.messages.end(), busy)) return;
    std::vector<SlotMessage> messages;
    for (std::size_t i : round.messages) {
      if (schedule::is_recv(actions[i].op)) free_buffer(actions[i], run);
      messages.push_back(slot_message(actions[i], run));
    }
    start_.start_round(std::move(messages));
  }
}

void Executor::wait_for_all_sends(ProgramRun const& run) {
  for (auto& [place, m] : messages_) {
    Action const slot{Op::forward, place.first, -1, place.second};
    timed_wait(m.send_activation, Op::send_activation, slot, run);
    timed_wait(m.send_gradient, Op::send_gradient, slot, run);
  }
  if (!vocabulary_) return;
  Action const last{Op::embed_backward, 0};
  vocabulary_->finish(waits_for(last, run));
}

}  // namespace p3d::engine
