// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a run's summary that come from the input, the plan and the measurements.

#include <p3d/config/config.hpp>
#include <p3d/engine/phases.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/run_summary.hpp>

namespace p3d::report {

/// Adds the program, this host and its share of the node, and the run's name and length.
void add_machine(plan::RunSummary& summary, config::Config const& config);
/// Adds the layout, the schedule and the sizes of a step, and the predicted memory.
void add_plan(plan::RunSummary& summary, config::Config const& config, engine::RunPlan const& plan);
/// Adds the time by phase, and the bytes of all ranks before the run took any and now (0: not known).
void add_measured(plan::RunSummary& summary, engine::PhaseSpread const& phases, double memory_before,
                  double memory_now);

}  // namespace p3d::report
