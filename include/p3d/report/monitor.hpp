// SPDX-License-Identifier: Apache-2.0
#pragma once
// The monitor names the bottleneck of a run (p3d/plan/bottleneck.hpp) from the times that the trainer measures anyway.

#include <p3d/engine/phases.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/plan/bottleneck.hpp>

#include <string>

namespace p3d::report {

/// The shares of a run's time. `mine` is what trainer.times() says, `phases` the same over all ranks; `disk_s`: seconds
/// in which this rank's steps waited for checkpoints. Collective.
plan::TimeShares time_shares(engine::AnyTrainer& trainer, engine::PhaseTimes const& mine,
                             engine::PhaseSpread const& phases, double disk_s);

/// The bottleneck in words; "" before the first step. Collective.
std::string bottleneck(engine::AnyTrainer& trainer, engine::PhaseTimes const& mine, engine::PhaseSpread const& phases,
                       double disk_s);

}  // namespace p3d::report
