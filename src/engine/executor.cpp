// SPDX-License-Identifier: Apache-2.0
// One switch over the actions of a rank, with the rule of every wait: an action waits for the messages and the copies
// of the slots that it uses, and STEP for all. Messages belong to (stage, slot); whoever takes a slot anew waits for
// what still travels from or to it. Example: 2F0 in slot 1 waits for the send of the slot's last user and for the
// activation of microbatch 0, computes, and leaves the output for the send that the list has next.
#include <p3d/engine/executor.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/poll.hpp>
#include <p3d/base/strand.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/event.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include "activation_store.hpp"
#include "program_run.hpp"
#include "vocabulary_actions.hpp"

#include <algorithm>
#include <utility>

namespace p3d::engine {

using schedule::Action;
using schedule::Op;

Executor::Executor(std::map<int, StagePort*> stages, comm::Communicator& pipeline, device::ExecSpace const& exec,
                   std::function<double()> waited, base::Polls polls)
    : stages_(std::move(stages)),
      pipeline_(&pipeline),
      start_(pipeline),
      exec_(exec),
      waited_(std::move(waited)),
      polls_(polls) {}

std::vector<Executor::Detail> const& Executor::details(schedule::ValidProgram const& proved,
                                                       std::vector<Action> const& actions) {
  schedule::Program const& program = proved;
  auto& out = details_[{proved.number(), &actions}];
  if (out.size() == actions.size()) return out;
  auto const completes = schedule::completes_gradients(program, pipeline_->rank(), actions);
  auto const& all = program.ranks[static_cast<std::size_t>(pipeline_->rank())];
  auto const gradients = &actions == &all ? schedule::moves_gradients(program, pipeline_->rank())
                                          : std::vector<bool>(actions.size(), false);  // streams move none
  auto const same_call = proved.execution().p2p == schedule::P2p::batched ? schedule::same_call(program, actions)
                                                                          : std::vector<int>(actions.size(), -1);
  out.clear();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    auto const& a = actions[i];
    auto& d = out.emplace_back();
    d.text = schedule::to_string(a);
    if (proved.execution().pairs && schedule::begins_pair(actions, i))
      d.text += " beside " + schedule::to_string(actions[i + 1]);
    bool const reads_neighbours = a.op == Op::forward || schedule::makes_input_gradient(a.op);
    d.reads_previous = reads_neighbours && schedule::input_is_local(program, a.stage);
    d.reads_next = schedule::makes_input_gradient(a.op) && schedule::output_is_local(program, a.stage);
    d.completes = completes[i];
    d.gradients = gradients[i];
    int const here = static_cast<int>(i), other = same_call[i];
    if (other >= 0) d.call = {std::min(here, other), here < other};
  }
  return out;
}

Executor::ProgramRun Executor::prepare(schedule::ValidProgram const& proved, double loss_scale, Hooks const& hooks) {
  auto const how = proved.execution();
  P3D_REQUIRE(how.rendezvous && how.sends_in_flight == sends_in_flight,
              "the program is proved for what the executor does");
  if (vocabulary_) vocabulary_->set_lengths(hooks.length);
  schedule::Program const& program = proved;
  bool const training = proved.pass() == schedule::Pass::training;
  auto const& actions = program.ranks[static_cast<std::size_t>(pipeline_->rank())];
  ProgramRun run{.program = program,
                 .pairs = how.pairs,
                 .waits_inside = how.waits_inside,
                 .training = training,
                 .loss_scale = loss_scale,
                 .hooks = hooks,
                 .recorder = training ? recorder_ : nullptr,
                 .actions = &actions,
                 .details = &details(proved, actions)};
  if (how.p2p == schedule::P2p::ring && pipeline_->size() > 1) {
    P3D_REQUIRE(start_.has_ring(), "rounds have their communicator");
    run.rounds = &proved.rounds().ranks[static_cast<std::size_t>(pipeline_->rank())];
  }
  return run;
}

void Executor::run(schedule::ValidProgram const& program, std::int64_t step, double loss_scale, Hooks const& hooks) {
  auto run = prepare(program, loss_scale, hooks);
  auto const opened = std::exchange(opened_, {});
  P3D_REQUIRE(!opened.program || (opened.program == &run.program && opened.step == step),
              "an opening is followed by its own step, or abandoned");
  if (run.recorder && run.recorder != opened.recorder) run.recorder->begin_step(step);
  // Where messages are on their way while the rank computes, or begin when kernels have ended that were launched
  // before: else the next stage waits until this rank has launched its next action.
  bool const exchanges = run.waits_inside || vocabulary_ || (pipeline_->size() > 1 && device::events_come_later());
  base::Polling const polling(exchanges ? comm::progress : nullptr, polls_);
  if (vocabulary_) vocabulary_->begin(run.program, run.training);
  auto const before = times_;
  run_actions(opened.actions, run.actions->size(), step, run);
  comm::set_activity(step, "end of the step");
  wait_for_all_sends(run);
  timed(Phase::pipeline_wait, [&] { start_.finish(); });
  if (!run.training) times_ = before;
}

void Executor::run(schedule::Stream const& stream, bool another_follows, std::int64_t step, double loss_scale,
                   Hooks const& hooks) {
  auto run = prepare(stream.steps, loss_scale, hooks);
  P3D_REQUIRE(!run.rounds, "the rounds of a step end with it");
  P3D_REQUIRE(!run.pairs && !vocabulary_ && !store_, "a stream has F, B, I and W alone");
  auto const opened = std::exchange(opened_, {});
  bool const begun = opened.program != nullptr;
  P3D_REQUIRE(begun || another_follows, "a step with a flush before and behind it is none of a stream");
  P3D_REQUIRE(!begun || (opened.program == &run.program && opened.step == step), "the next step follows, or none");
  P3D_REQUIRE(another_follows || !stream.last.empty(), "the stream has lists that end it");
  auto const& parts = !begun ? stream.first : another_follows ? stream.middle : stream.last;
  auto const& part = parts[static_cast<std::size_t>(pipeline_->rank())];
  auto const actions = slot_names_.apply(stream.steps, part, begun);
  // A list numbers microbatches from its own step on: those that the list before it began have smaller numbers now.
  std::map<std::pair<int, int>, int> carried;
  for (auto const& [place, slot] : slot_of_)
    if (begun && place.second >= stream.microbatches) carried[{place.first, place.second - stream.microbatches}] = slot;
  slot_of_ = std::move(carried);
  run.actions = &actions;
  run.details = &details(stream.steps, part.actions);
  run.microbatches = stream.microbatches;
  run.flushes = !another_follows;
  run.recorder = nullptr;
  base::Polling const polling(comm::progress, polls_);
  std::size_t const end = actions.size() - 1;  // STEP is last
  run_actions(0, end, step, run);
  if (another_follows) {
    flush_deferred(run);
    // STEP may throw; what the next step has begun must be seen through all the same.
    opened_ = {&run.program, step + 1, 0, &part.unmatched, hooks.length, nullptr};
  }
  run_actions(end, actions.size(), step, run);
  if (another_follows) return;
  comm::set_activity(step, "end of the step");
  wait_for_all_sends(run);
}

int Executor::steps_early(Action const& action, ProgramRun const& run) {
  return schedule::is_compute(action.op) ? action.microbatch / run.microbatches : 0;
}

void Executor::open(schedule::ValidProgram const& program, schedule::Opening const& openings, std::int64_t step,
                    Hooks const& hooks) {
  P3D_REQUIRE(!has_opened(), "one opening at a time");
  auto run = prepare(program, 0.0, hooks);
  P3D_REQUIRE(!run.pairs && !run.rounds, "an opening has no backward, nor half a pair or a part of the rounds");
  auto const here = static_cast<std::size_t>(pipeline_->rank());
  if (run.recorder) run.recorder->begin_step(step);
  base::Polling const polling(comm::progress, polls_);  // the sum that the last step waits for
  run_actions(0, openings.actions.at(here), step, run);
  P3D_REQUIRE(deferred_.empty(), "an opening takes no slot twice");
  opened_ = {&run.program, step, openings.actions.at(here), &openings.unmatched.at(here), hooks.length, run.recorder};
}

void Executor::record_into(Recorder* recorder) {
  if (auto* const former = std::exchange(opened_.recorder, nullptr)) former->drop_step();
  recorder_ = recorder;
}

void Executor::abandon() {
  auto const opened = std::exchange(opened_, {});
  if (!opened.program) return;
  if (opened.recorder) opened.recorder->drop_step();
  // One after the other, in little memory: their other ends are in openings, which run to their ends by themselves.
  for (Action const& a : *opened.unmatched) {
    stage(a).shape(a.slot, opened.length ? opened.length(a.microbatch) : 0);
    stage(a).pass_empty(*pipeline_, a, *opened.program);
  }
  for (auto& [place, m] : messages_)
    for (auto* request : {&m.recv_activation, &m.recv_gradient, &m.send_activation, &m.send_gradient}) request->wait();
  if (vocabulary_) vocabulary_->finish([](comm::Request& request) { request.wait(); });
}

void Executor::run_actions(std::size_t first, std::size_t end, std::int64_t step, ProgramRun& run) {
  auto const& actions = *run.actions;
  auto const& known = *run.details;
  for (std::size_t i = first; i < end; ++i) {
    comm::set_activity(step, known[i].text.c_str());
    comm::progress();  // messages begin whose kernels have ended meanwhile
    if (run.rounds) start_rounds(i, run);
    if (run.pairs && schedule::begins_pair(actions, i)) {
      execute_pair(i++, run);
    } else if (times_actions_ && run.training) {
      execute_timed(actions[i], known[i], run);
    } else if (run.recorder) {
      execute_recorded(actions[i], known[i], run);
    } else {
      execute(actions[i], known[i], run);
    }
  }
  start_.release();
  if (run.rounds) start_rounds(end, run);
}

void Executor::execute_recorded(Action const& action, Detail const& detail, ProgramRun& run) {
  run.recorder->begin_action();
  execute(action, detail, run);
  comm::settle();
  device::fence(exec_, "p3d::engine::recorded_action");
  run.recorder->end_action(action);
}

void Executor::execute_timed(Action const& action, Detail const& detail, ProgramRun& run) {
  base::Stopwatch watch;
  if (run.recorder) {
    execute_recorded(action, detail, run);
  } else {
    execute(action, detail, run);
    if (!device::on_host()) device::fence(exec_, "p3d::engine::timed_action");
  }
  book(action.op, watch.seconds());
}

void Executor::book(Op op, double seconds) {
  auto const at = static_cast<std::size_t>(op);
  action_times_.seconds[at] += seconds;
  ++action_times_.calls[at];
}

void Executor::before(Action const& action, ProgramRun const& run) {
  if (deferred_.empty()) return;
  start_.release();
  post_deferred(run);
  bool const needed = std::any_of(deferred_.begin(), deferred_.end(),
                                  [&](Action const& d) { return d.stage == action.stage && d.slot == action.slot; });
  if (needed || !schedule::has_microbatch(action.op)) flush_deferred(run);
}

void Executor::execute_pair(std::size_t first, ProgramRun& run) {
  auto const& actions = *run.actions;
  auto const& known = *run.details;
  Action const &f = actions[first], &b = actions[first + 1];
  if (run.recorder) run.recorder->begin_action();
  before(f, run);
  before(b, run);
  prepare_forward(f, known[first], run);
  prepare_backward(b, known[first + 1], run);
  double busy[2] = {}, waited = waited_();
  base::Stopwatch watch;
  double booked = 0.0;
  base::interleave({[&] { forward(f, run); }, [&] { backward(b, known[first + 1], run); }}, [&](std::size_t work) {
    double const now = watch.seconds(), all_waits = waited_();
    busy[work] += now - booked;
    times_[work == 0 ? Phase::forward : Phase::backward] += now - booked - (all_waits - waited);
    times_[Phase::stage_comm] += all_waits - waited;
    booked = now;
    waited = all_waits;
  });
  if (times_actions_ && run.training) {
    if (!device::on_host()) device::fence(exec_, "p3d::engine::timed_pair");
    busy[1] += watch.seconds() - booked;
    book(f.op, busy[0]);
    book(b.op, busy[1]);
  }
  if (!run.recorder) return;
  comm::settle();
  device::fence(exec_, "p3d::engine::recorded_pair");
  run.recorder->end_pair(f, busy[0], b, busy[1]);
}

void Executor::execute(Action const& action, Detail const& detail, ProgramRun& run) {
  before(action, run);
  if (steps_early(action, run) > 0) timed(Phase::optimizer, run.hooks.newest_needed);
  switch (action.op) {
    case Op::recv_activation:
    case Op::recv_gradient:
      if (!run.rounds) receive_or_defer(action, detail.call, run);
      break;
    case Op::offload_activations:
    case Op::reload_activations: move_activations(action, detail, run); break;
    case Op::forward:
      prepare_forward(action, detail, run);
      timed(Phase::forward, [&] { forward(action, run); });
      break;
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
      prepare_backward(action, detail, run);
      timed(Phase::backward, [&] { backward(action, detail, run); });
      break;
    case Op::send_activation:
    case Op::send_gradient:
      if (!run.rounds) start_.start(slot_message(action, run), detail.call);
      break;
    case Op::reduce_gradients:
    case Op::reduce_scatter_gradients:
      if (detail.completes) part_ready(action, run);
      timed(Phase::dp_comm, [&] { run.hooks.reduce_gradients(action.stage); });
      break;
    case Op::optimizer_step:
      if (run.flushes) wait_for_all_sends(run);
      timed(Phase::optimizer, [&] { run.hooks.optimizer_step(-1); });
      break;
    case Op::stage_step: timed(Phase::optimizer, [&] { run.hooks.optimizer_step(action.stage); }); break;
    case Op::gather_weights:
    case Op::release_weights:
    case Op::offload_weights:
    case Op::reload_weights:
      timed(Phase::dp_comm, [&] { stage(action).move_weights(action.op, action.version); });
      break;
    case Op::embed_forward:
    case Op::head_forward:
    case Op::head_backward:
    case Op::embed_backward: vocabulary(action, detail, run); break;
  }
}

void Executor::vocabulary(Action const& action, Detail const& detail, ProgramRun& run) {
  P3D_REQUIRE(vocabulary_, "a program with E, S, T and G has somebody for them");
  auto const wait = waits_for(action, run);
  vocabulary_->prepare(action, wait);
  bool const forward = !schedule::makes_vocabulary_gradient(action.op);
  if (action.op != Op::head_backward)
    timed(Phase::other, [&] { run.hooks.load_part(action.op, action.slot, action.microbatch); });
  timed(forward ? Phase::forward : Phase::backward, [&] { vocabulary_->execute(action, run.loss_scale, wait); });
  if (detail.completes) part_ready(action, run);
}

void Executor::part_ready(Action const& action, ProgramRun const& run) {
  auto const& s = stage(action);
  run.hooks.gradients_ready(action.stage, 0, s.first_own_param());
  run.hooks.gradients_ready(action.stage, s.end_of_own_params(), s.num_params());
}

Executor::Messages& Executor::messages(Action const& action) { return messages_[{action.stage, action.slot}]; }

void Executor::take_slot(Action const& action, ProgramRun const& run) {
  // The slot's buffers may still be on their way from its last microbatch.
  auto& m = messages(action);
  timed_wait(m.send_activation, Op::send_activation, action, run);
  timed_wait(m.send_gradient, Op::send_gradient, action, run);
  wait_for_store(Op::offload_activations, action.stage, action, run);
}

void Executor::shape_slot(Action const& action, ProgramRun const& run) {
  if (store_) store_->forget_read(action.stage, action.slot);
  stage(action).shape(action.slot, run.hooks.length ? run.hooks.length(action.microbatch) : 0);
}

void Executor::move_activations(Action const& action, Detail const& detail, ProgramRun& run) {
  P3D_REQUIRE(store_ != nullptr, "a program that offloads activations has a store for them");
  if (action.op == Op::offload_activations)
    return timed(Phase::other,
                 [&] { store_->offload(action.stage, action.slot, action.microbatch, detail.gradients); });
  // Reading back reaches into the buffers of messages only where gradients are read.
  if (detail.gradients) {
    auto& m = messages(action);
    timed_wait(m.send_activation, Op::send_activation, action, run);
    timed_wait(m.send_gradient, Op::send_gradient, action, run);
  }
  slot_of_[{action.stage, action.microbatch}] = action.slot;
  timed(Phase::other, [&] { store_->reload(action.stage, action.slot, action.microbatch, detail.gradients); });
}

void Executor::wait_for_store(Op move, int stage, Action const& action, ProgramRun const& run) {
  if (store_ == nullptr) return;
  bool const written = move == Op::offload_activations;
  int const slot = stage == action.stage ? action.slot : slot_of(stage, action);
  if (!(written ? store_->writes(stage, slot) : store_->reads(stage, slot))) return;
  double const begin = run.recorder ? Recorder::now() : 0.0;
  timed(Phase::other, [&] { written ? store_->wait_written(stage, slot) : store_->wait_read(stage, slot); });
  if (run.recorder) run.recorder->waited({move, stage, written ? -1 : action.microbatch, slot}, begin);
}

void Executor::take_input(int stage, Action const& action, ProgramRun const& run) {
  auto const& previous = *stages_.at(stage - 1);
  int const slot = slot_of(stage - 1, action);
  if (previous.hands_on() && stages_.contains(stage - 2)) take_input(stage - 1, action, run);
  wait_for_store(Op::reload_activations, stage - 1, action, run);
  stages_.at(stage)->take_input(slot_of(stage, action), previous.output(slot));
}

void Executor::prepare_forward(Action const& action, Detail const& detail, ProgramRun& run) {
  auto& m = messages(action);
  slot_of_[{action.stage, action.microbatch}] = action.slot;
  if (m.recv_activation.active()) {
    timed_wait(m.recv_activation, Op::recv_activation, action, run);
  } else {
    take_slot(action, run);
    shape_slot(action, run);
    if (detail.reads_previous) take_input(action.stage, action, run);
  }
  timed(Phase::other, [&] { run.hooks.load(action.stage, action.slot, action.microbatch); });
  if (schedule::exchange_read(run.program, action))
    vocabulary_->begin_forward(action.microbatch, stage(action).input(action.slot), waits_for(action, run));
}

void Executor::forward(Action const& action, ProgramRun& run) {
  stage(action).forward(weights(action, run), action.slot, run.training);
  if (schedule::exchange_given(run.program, action))
    vocabulary_->end_forward(action.microbatch, stage(action).head_input(action.slot), waits_for(action, run));
}

void Executor::prepare_backward(Action const& action, Detail const& detail, ProgramRun& run) {
  auto& s = stage(action);
  auto& m = messages(action);
  wait_for_store(Op::reload_activations, action.stage, action, run);
  if (schedule::makes_input_gradient(action.op)) {
    if (detail.reads_previous) take_input(action.stage, action, run);
    // The buffer of the gradient may still be on its way from another microbatch.
    timed_wait(m.send_gradient, Op::send_gradient, action, run);
    if (m.recv_gradient.active()) {
      timed_wait(m.recv_gradient, Op::recv_gradient, action, run);
    } else if (detail.reads_next) {
      int owner = action.stage + 1;
      while (!stages_.at(owner)->has_gradient()) ++owner;
      wait_for_store(Op::reload_activations, owner, action, run);
      s.take_gradient(action.slot, stages_.at(owner)->gradient(slot_of(owner, action)));
    }
  }
  if (schedule::exchange_read(run.program, action))
    s.take_head_gradient(action.slot, vocabulary_->begin_backward(action.microbatch, waits_for(action, run)));
  // The input part overwrites the output. Its send is over, the gradient that came back was made from it; but where the
  // microbatch was offloaded, the slot may still send another one's.
  if (action.op == Op::backward_input) timed_wait(m.send_activation, Op::send_activation, action, run);
}

void Executor::backward(Action const& action, Detail const& detail, ProgramRun& run) {
  auto& s = stage(action);
  StagePort::Ready ready;
  if (detail.completes) {
    ready = [&](std::size_t first, std::size_t end) { run.hooks.gradients_ready(action.stage, first, end); };
  }
  s.backward(action.op, weights(action, run), action.slot, run.loss_scale, ready);
  if (schedule::exchange_given(run.program, action))
    vocabulary_->end_backward(action.microbatch, s.gradient(action.slot), waits_for(action, run));
}

template <class Work>
void Executor::timed(Phase phase, Work&& work) {
  double const waited_before = waited_(), in_pipeline_before = times_[Phase::pipeline_wait];
  base::Stopwatch watch;
  work();
  double const waited = waited_() - waited_before;
  times_[phase] += watch.seconds() - waited - (times_[Phase::pipeline_wait] - in_pipeline_before);
  times_[Phase::stage_comm] += waited;
}

void Executor::timed_wait(comm::Request& request, Op message, Action const& action, ProgramRun const& run) {
  if (!request.active()) return;
  start_.release();
  if (!deferred_.empty()) {
    if (request.test()) return;
    flush_deferred(run);
  }
  double const begin = run.recorder ? Recorder::now() : 0.0;
  base::Stopwatch watch;
  request.wait();
  times_[Phase::pipeline_wait] += watch.seconds();
  // The microbatch of a send that is waited for is that of the slot's last user.
  bool const sends = schedule::is_send(message);
  if (run.recorder) run.recorder->waited({message, action.stage, sends ? -1 : action.microbatch, action.slot}, begin);
}

}  // namespace p3d::engine
