// SPDX-License-Identifier: Apache-2.0
#pragma once
// output_dir/summary.json, written at the start and at the end of a run: plan, results and how each start ended.

#include <p3d/base/error.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/plan/run_summary.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace p3d::run {

/// The file summary.json of a run. Exists on every rank, and writes on rank 0. A file that cannot be written is a
/// warning: nothing of the run is in it alone.
class SummaryFile {
public:
  /// `clock`: the run's wall time counts from here.
  SummaryFile(config::Config const& config, comm::Communicator& world, base::Stopwatch clock);
  /// The contents of the file, to be filled as they become known.
  plan::RunSummary& contents() { return contents_; }
  /// Writes the file. Behind step 0 the starts of an older file are kept. A start that finds the run finished leaves
  /// the older file as it is.
  void begin(std::int64_t first_step);
  /// Notes the number of steps done, and returns it.
  std::int64_t reached(std::int64_t step) { return contents_.starts.back().last_step = step; }
  /// Runs `train`. Once begin() was called, writes how it ended: the exit code that it returns, or the error that it
  /// throws, which is thrown on.
  base::ExitCode keep(std::function<base::ExitCode()> const& train);

private:
  /// Fills in the end of this start (time, state, exit code) and writes the file.
  void end(base::ExitCode code, std::string const& reason);
  /// Replaces the file by the contents; warns when it cannot.
  void write() const;

  plan::RunSummary contents_;
  std::string path_;
  base::Stopwatch clock_;
  bool root_;
  bool begun_ = false;  ///< begin() wrote this start into the file
};

}  // namespace p3d::run
