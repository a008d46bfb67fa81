// SPDX-License-Identifier: Apache-2.0
#pragma once
// The [timers] of a run: every run.log_every steps the times since the last ones, over ranks, as lines of the log and
// as rows of timers.csv in run.output_dir. The file is a help for the eye and no part of the run's history: where it
// cannot be written the run is warned once and goes on.

#include <p3d/comm/communicator.hpp>
#include <p3d/engine/phases.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "row_file.hpp"

namespace p3d::run {

/// The timers of one rank. All ranks have one.
class TimerFile {
public:
  /// Rank 0 keeps the whole rows of an earlier file up to step `start`. Throws base::Error on rank 0 when the file
  /// cannot be made.
  TimerFile(std::string const& output_dir, std::int64_t start, bool root);
  /// Notes seconds of something that is no action of a step: an evaluation, a checkpoint. Names are the same on all
  /// ranks.
  void add(std::string const& name, double seconds);
  /// Compares `timers`, which grow from step to step, with those of the last call, over the ranks of `world`. Returns
  /// the lines of the log, and writes the rows "step,timer,calls,min_ms,mean_ms,max_ms" on rank 0: milliseconds a step
  /// since the last call, calls of the rank that has most. Collective.
  std::string write(std::int64_t step, std::vector<engine::Timer> timers, comm::Communicator& world);

private:
  std::optional<RowFile> file_;        ///< on rank 0
  std::vector<engine::Timer> own_;     ///< timers of add()
  std::vector<engine::Timer> before_;  ///< all, at the last call
  std::int64_t last_step_;
};

}  // namespace p3d::run
