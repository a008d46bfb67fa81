// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cause of a large bubble, and the keys that would make it smaller. The functions depend on their arguments
// alone.

#include <p3d/config/config.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/simulator.hpp>

#include <string>

namespace p3d::report {

/// The pipeline rank with the most work, where that makes others wait: its work is above 1.05 of the mean. A rank of -1
/// means none.
struct Busiest {
  int rank = -1;
  double ratio = 1.0;  ///< work of that rank over the mean of all ranks
};
/// The busiest rank of a simulated step.
Busiest busiest_rank(plan::Simulation const& simulated);

/// The share of a bubble from which its cause is told.
constexpr double large_bubble = 0.15;

/// Lines about a large bubble, each with its line end; "" for a smaller one. They say the cause: the busiest rank and
/// what it has more than others, or that filling and draining takes so long. Then come the keys with which a step would
/// be shorter, each by simulation of the input with that key. Programs above some thousand forwards get only the cause.
std::string bubble_lines(config::Config const& config, engine::RunPlan const& plan, plan::Simulation const& simulated);

}  // namespace p3d::report
