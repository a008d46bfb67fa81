// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of steps in their order, with the time and the tokens of each. Where steps follow each other without a
// flush, the result of a step comes while later ones are under way; whoever needs the state that belongs to a result
// has the pipeline empty itself there. Example: with a checkpoint every 10 steps, next() runs steps 1 and 2 before it
// returns the result of step 1, and after the result of step 10 no later step has begun.

#include <p3d/base/error.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/engine/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

namespace p3d::run {

/// A step that was run.
struct DoneStep {
  engine::StepResult result;
  double seconds = 0.0;               ///< time of this rank in the step
  std::int64_t tokens = 0;            ///< inputs of all steps so far
  std::vector<engine::Timer> timers;  ///< Trainer::timers() behind it
};

/// Runs the steps of a trainer, which must outlive it.
template <class P>
class StepResults {
public:
  /// `vote`: as Trainer::step has it. `is_needed`: whether the state after a step is needed before the next one.
  StepResults(engine::Trainer<P>& trainer, std::function<double()> vote, std::function<bool(std::int64_t)> is_needed)
      : trainer_(&trainer), vote_(std::move(vote)), is_needed_(std::move(is_needed)) {}

  /// The next result, for which as many steps are run as it takes. Requests to stop and votes come with a result whose
  /// step is the last one that has begun. Throws as Trainer::step, when all results before were returned.
  DoneStep next() {
    while (results_.empty()) {
      if (error_) std::rethrow_exception(error_);
      run();
    }
    auto out = std::move(steps_.front());
    out.result = std::move(results_.front());
    steps_.pop_front();
    results_.pop_front();
    stop_ = stop_ || out.result.stop;
    votes_ = std::max(votes_, out.result.votes);
    bool const newest = out.result.step == trainer_->steps_done();
    if (!newest && (stop_ || votes_ > 0.0)) take([&] { return trainer_->drain(); });  // no further step begins
    out.result.stop = newest && std::exchange(stop_, false);
    out.result.votes = newest ? std::exchange(votes_, 0.0) : 0.0;
    return out;
  }

private:
  void run() {
    base::Stopwatch const watch;
    auto const vote = vote_();
    bool const needed = is_needed_(trainer_->steps_done() + 1);
    if (!take([&] { return trainer_->advance(vote, !needed); })) return;
    DoneStep done;
    done.seconds = watch.seconds();
    done.tokens = trainer_->tokens_done();
    done.timers = trainer_->timers();
    steps_.push_back(std::move(done));
  }
  /// Keeps the results of a call, or those that it leaves when it throws; false: it threw.
  template <class Call>
  bool take(Call const& call) {
    std::vector<engine::StepResult> results;
    try {
      results = call();
    } catch (base::Error const&) {
      error_ = std::current_exception();
      results = trainer_->late_results();
    }
    for (auto& result : results) results_.push_back(std::move(result));
    return error_ == nullptr;
  }

  engine::Trainer<P>* trainer_;
  std::function<double()> vote_;
  std::function<bool(std::int64_t)> is_needed_;
  std::deque<engine::StepResult> results_;
  std::deque<DoneStep> steps_;  ///< the steps that were run, without their results
  std::exception_ptr error_;    ///< the exception of the last step
  bool stop_ = false;
  double votes_ = 0.0;
};

}  // namespace p3d::run
