// SPDX-License-Identifier: Apache-2.0
// Steps that do not wait for the global norm (optimizer.post_validation; arXiv 2401.10241, section 4).

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/wait.hpp>

#include <exception>
#include <utility>

namespace p3d::engine {

template <class P>
void Trainer<P>::State::validate(StepResult& result) {
  executor->open(plan.training, opening, result.step + 1, loading_hooks(loader.training(result.step)));
  base::Stopwatch watch;
  comm::set_activity(result.step, "the global norm");
  finish_sum(result);
  if (!std::exchange(tried_out, false)) update(-1, result);
  executor->times()[Phase::optimizer] += watch.seconds();
}

template <class P>
void Trainer<P>::State::take_back() {
  forget_opening();
  for (auto& [number, unit] : units) {
    for (auto const& run : unit->params.shard().owned) unit->state.take_back(exec, run, unit->params.master(run));
    if (unit->sharded) unit->sharded->updated();
  }
  master_is_newer = true;  // should no update follow
  tried_out = false;
  ++post_validation.taken_back;
}

template <class P>
void Trainer<P>::State::forget_opening() {
  if (!executor || !executor->has_opened()) return;
  executor->abandon();
  for (auto& [number, unit] : units)
    if (unit->sharded) unit->sharded->give_up();
  take_loss();  // of the last stage's forwards
}

template <class P>
Trainer<P>::~Trainer() {
  // What an opening receives may not be asked for yet. Where an exception unwinds, other ranks may never come.
  if (!state_ || std::uncaught_exceptions() > 0) return;
  try {
    state_->forget_opening();
  } catch (std::exception const& e) {  // nobody above a destructor can handle it
    base::error_here(e.what());
    comm::abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
}

template <class P>
PostValidation Trainer<P>::post_validation() const {
  return state_->post_validation;
}

#define P3D_INSTANTIATE(P)                                \
  template void Trainer<P>::State::validate(StepResult&); \
  template void Trainer<P>::State::take_back();           \
  template void Trainer<P>::State::forget_opening();      \
  template Trainer<P>::~Trainer();                        \
  template PostValidation Trainer<P>::post_validation() const;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
