// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of steps in their order, with the time and the tokens of each. Where steps follow each other without a
// flush, the result of a step comes while the next one is under way; whoever needs the state that belongs to a result
// has the pipeline empty itself there. Example: with a checkpoint every 10 steps, next() runs steps 1 and 2 before it
// returns the result of step 1, and after the result of step 10 no later step has begun.

#include <p3d/base/timer.hpp>
#include <p3d/engine/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace p3d::run {

/// A step that was run.
struct DoneStep {
  engine::StepResult result;
  double seconds = 0.0;     ///< that this rank was in it
  std::int64_t tokens = 0;  ///< inputs of all steps so far
};

/// Runs the steps of a trainer, which must outlive it.
template <class P>
class StepResults {
public:
  /// `vote`: as Trainer::step has it. `is_needed`: whether the state after a step is needed before the next one.
  StepResults(engine::Trainer<P>& trainer, std::function<double()> vote, std::function<bool(std::int64_t)> is_needed)
      : trainer_(&trainer), vote_(std::move(vote)), is_needed_(std::move(is_needed)) {}

  /// The next result, for which as many steps are run as it takes. Requests to stop and votes come with a result whose
  /// step is the last one that has begun. Throws as Trainer::step.
  DoneStep next() {
    while (results_.empty()) {
      base::Stopwatch const watch;
      bool const needed = asks() || is_needed_(trainer_->steps_done() + 1);
      for (auto& result : trainer_->advance(vote_(), !needed)) results_.push_back(std::move(result));
      times_.emplace_back(watch.seconds(), trainer_->tokens_done());
    }
    DoneStep out{std::move(results_.front()), times_.front().first, times_.front().second};
    results_.pop_front();
    times_.pop_front();
    stop_ = stop_ || out.result.stop;
    votes_ = std::max(votes_, out.result.votes);
    bool const newest = out.result.step == trainer_->steps_done();
    out.result.stop = newest && std::exchange(stop_, false);
    out.result.votes = newest ? std::exchange(votes_, 0.0) : 0.0;
    return out;
  }

private:
  bool asks() const { return stop_ || votes_ > 0.0; }

  engine::Trainer<P>* trainer_;
  std::function<double()> vote_;
  std::function<bool(std::int64_t)> is_needed_;
  std::deque<engine::StepResult> results_;
  std::deque<std::pair<double, std::int64_t>> times_;  ///< of the steps that were run, as in DoneStep
  bool stop_ = false;
  double votes_ = 0.0;
};

}  // namespace p3d::run
