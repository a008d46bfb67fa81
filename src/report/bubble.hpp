// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a large bubble comes from, and which key would make it smaller. Pure.

#include <p3d/config/config.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/simulator.hpp>

#include <string>

namespace p3d::report {

/// The pipeline rank with the most work, where that makes others wait: above 1.05 of the mean of all. rank -1: none.
struct Busiest {
  int rank = -1;
  double ratio = 1.0;  ///< its work over the mean
};
Busiest busiest_rank(plan::Simulation const& simulated);

/// A bubble of this share and more is told with its cause.
constexpr double large_bubble = 0.15;

/// Lines about a large bubble, each with its end; "" for a smaller one. They say the cause: the busiest rank and what
/// it has more than others, or that filling and draining takes so long. Then come the keys with which a step would be
/// shorter, each by simulation of the input with that key; programs above some thousand forwards get the cause alone.
std::string bubble_lines(config::Config const& config, engine::RunPlan const& plan, plan::Simulation const& simulated);

}  // namespace p3d::report
