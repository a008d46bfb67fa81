// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data are read ahead of the steps that train on them, so that a token that cannot be read ends a run after a step that
// was saved, and not in the middle of one. Example: when sample 900 has an id beyond the vocabulary, and step 7 trains
// on it, a rank finds it when step 6 begins; all ranks stop after step 6, write their checkpoint, and say where it is.

#include <p3d/base/error.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/engine/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace p3d::run {

/// Reads the data of a trainer, which must outlive it, before their steps. Each sample is read twice: the cost is that
/// of a copy of its tokens.
template <class P>
class DataAhead {
public:
  /// Reads `batches` batches of the validation split and the first steps. Collective; throws, on every rank, the error
  /// of a rank that cannot read them.
  DataAhead(engine::Trainer<P>& trainer, std::int64_t batches) : trainer_(&trainer) {
    comm::agree(trainer.mesh().world(), "read the training data", [&] {
      trainer_->check_evaluation(batches);
      auto const end = std::min(trainer_->steps_done() + trainer_->steps_until_stop(), trainer_->config().run.steps);
      for (auto step = trainer_->steps_done(); step < end; ++step) trainer_->check_samples(step);
    });
  }

  /// Called before each step: reads the samples of one that comes later. Local.
  void before_step() {
    auto const step = trainer_->steps_done() + trainer_->steps_until_stop();
    if (error_ || step >= trainer_->config().run.steps) return;
    try {
      trainer_->check_samples(step);
    } catch (base::Error const&) {
      error_ = std::current_exception();
    }
  }

  /// Whether this rank asks to stop.
  bool found_bad() const { return error_ != nullptr; }

  /// Throws the error of a rank that found one, on every rank. Collective.
  void require_good() const {
    comm::agree(trainer_->mesh().world(), "read the training data", [&] {
      if (error_) std::rethrow_exception(error_);
    });
  }

private:
  engine::Trainer<P>* trainer_;
  std::exception_ptr error_;
};

}  // namespace p3d::run
