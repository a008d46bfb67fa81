// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace of a run (run.trace): the real times of every action on every rank, as files and as a line of the summary.

#include <p3d/engine/trainer.hpp>
#include <p3d/schedule/timeline.hpp>

#include <memory>
#include <string>

namespace p3d::report {

/// Records actions from its construction on; does nothing at all when run.trace is off. On a device every action then
/// ends with a fence, so that its time is its own.
class Tracing {
public:
  /// Starts to record. `draw` makes trace.svg; without it there is no picture. Collective, since the clocks of the
  /// ranks are compared.
  Tracing(engine::AnyTrainer& trainer, schedule::DrawTimelines draw);
  ~Tracing();
  Tracing(Tracing const&) = delete;
  Tracing& operator=(Tracing const&) = delete;

  /// Ends the recording. Writes run.output_dir/trace.json, trace.svg and costs.csv (for `p3d schedule --costs`) from
  /// rank 0 and returns the text for the summary there. The text is empty on other ranks, without a recorded step, and
  /// when run.trace is off. Throws base::Error on rank 0 when a file cannot be written. Collective.
  std::string finish();

private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p3d::report
