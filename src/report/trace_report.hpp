// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of recorded steps: costs, bubble, and the same step simulated with these costs. The functions
// depend on their arguments alone.

#include <p3d/layout/axes.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/engine/recorder.hpp>
#include <p3d/engine/run_plan.hpp>

#include <string>
#include <vector>

namespace p3d::report {

/// The recorded steps of the ranks of one pipeline, all on one clock.
struct PipelineRecord {
  layout::PerAxis where;                                   ///< coordinates of its first rank
  std::vector<std::vector<engine::Recorder::Step>> ranks;  ///< one list for each pipeline rank; all have the same steps
};

/// The report on recorded steps.
struct TraceReport {
  plan::PipelineCosts costs;   ///< means over microbatches, steps and pipelines
  plan::Simulation simulated;  ///< the step simulated with these costs
  double replayed_bubble =
      0.0;  ///< simulated again, each step with each action's own time, which shows the effect of uneven times
  double measured_bubble =
      0.0;  ///< 1 - compute / (ranks x time from the first to the last compute action), over all steps and pipelines
  double measured_makespan = 0.0;  ///< mean seconds of a step
  int steps = 0;                   ///< number of steps that count: all but the first of a run, which also warms up
  /// A timeline for each pipeline, with all steps; then the simulated step, which begins with the step that is drawn.
  std::vector<schedule::Timeline> timelines;
  /// The timelines of the picture: the first pipeline's step of median length, and the simulated step.
  std::vector<schedule::Timeline> drawn;
};

/// Makes the report. `transfer` is the seconds that a message takes. `warm_up` is the number of the step that does not
/// count if there are others.
TraceReport report(std::string const& schedule, schedule::ValidProgram const& program,
                   std::vector<PipelineRecord> const& pipelines, double transfer, double message_bytes,
                   std::int64_t warm_up);

/// The text for the end of a run: "Pipeline bubble ...: predicted 21.4 % (...), measured 22.0 %, difference +0.6 points
/// ...".
std::string summary(TraceReport const& report, schedule::Program const& program);

}  // namespace p3d::report
