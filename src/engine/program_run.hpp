// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <p3d/engine/executor.hpp>

namespace p3d::engine {

/// The state of one pass over a program.
struct Executor::ProgramRun {
  schedule::Program const& program;
  bool pairs, waits_inside, training;
  double loss_scale;
  Hooks const& hooks;
  Recorder* recorder;
  std::vector<schedule::Action> const* actions;          ///< the list of this rank
  std::vector<Detail> const* details;                    ///< one for each action of the list
  int microbatches = schedule::any_number;               ///< number in the step; those from there on are later ones'
  bool flushes = true;                                   ///< STEP waits for what is under way
  std::vector<schedule::Round> const* rounds = nullptr;  ///< the rounds of this rank; null: messages start one by one
  std::size_t rounds_started = 0;
};

}  // namespace p3d::engine
