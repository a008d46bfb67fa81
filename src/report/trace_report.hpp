// SPDX-License-Identifier: Apache-2.0
#pragma once
// What recorded steps say: costs, bubble, and the same step simulated with these costs. Pure.

#include <p3d/layout/axes.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/engine/recorder.hpp>
#include <p3d/engine/run_plan.hpp>

#include <string>
#include <vector>

namespace p3d::report {

/// The recorded steps of the ranks of one pipeline, all on one clock.
struct PipelineRecord {
  layout::PerAxis where;                                   ///< of its first rank
  std::vector<std::vector<engine::Recorder::Step>> ranks;  ///< by pipeline rank; of all the same steps
};

struct TraceReport {
  plan::PipelineCosts costs;     ///< means over microbatches, steps and pipelines
  plan::Simulation simulated;    ///< with these costs
  double replayed_bubble = 0.0;  ///< simulated again, each step with each action's own time: what uneven times add
  double measured_bubble =
      0.0;  ///< 1 - compute / (ranks x time from the first to the last compute action), over all steps and pipelines
  double measured_makespan = 0.0;  ///< of a step, the mean
  int steps = 0;                   ///< that count: all but the first of a run, which also warms up
  /// One for each pipeline, with all steps; then the simulated step, beginning with the step that is drawn.
  std::vector<schedule::Timeline> timelines;
  /// Of the first pipeline the step of median length, and the simulated one: what the picture shows.
  std::vector<schedule::Timeline> drawn;
};

/// `transfer`: seconds that a message takes. `warm_up`: the number of the step that does not count if there are others.
TraceReport report(std::string const& schedule, schedule::Program const& program,
                   std::vector<PipelineRecord> const& pipelines, double transfer, double message_bytes,
                   std::int64_t warm_up);

/// "Pipeline bubble ...: predicted 21.4 % (...), measured 22.0 %, difference +0.6 points ..." for the end of a run.
std::string summary(TraceReport const& report, schedule::Program const& program);

}  // namespace p3d::report
