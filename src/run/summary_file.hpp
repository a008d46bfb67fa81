// SPDX-License-Identifier: Apache-2.0
#pragma once
// output_dir/summary.json, written at the start and at the end of a run.

#include <p3d/base/error.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/report/run_summary.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace p3d::run {

/// Exists on every rank, and writes on rank 0. A file that cannot be written is a warning: nothing of the run is in it
/// alone.
class SummaryFile {
public:
  /// `clock`: the run's wall time counts from here.
  SummaryFile(config::Config const& config, comm::Communicator& world, base::Stopwatch clock);
  /// What the file will say; to be filled as it becomes known.
  report::RunSummary& contents() { return contents_; }
  /// Writes the file. Behind step 0 the starts of an older file are kept. A start that finds the run finished leaves
  /// the older file as it is.
  void begin(std::int64_t first_step);
  /// The steps done; returned.
  std::int64_t reached(std::int64_t step) { return contents_.starts.back().last_step = step; }
  /// Runs `train`, and writes how it ended once begin() was called: the exit code that it returns, or what it throws,
  /// which goes on.
  base::ExitCode keep(std::function<base::ExitCode()> const& train);

private:
  void end(base::ExitCode code, std::string const& reason);
  void write() const;

  report::RunSummary contents_;
  std::string path_;
  base::Stopwatch clock_;
  bool root_;
  bool begun_ = false;
};

}  // namespace p3d::run
