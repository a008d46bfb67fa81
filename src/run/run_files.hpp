// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of a run in run.output_dir: resolved.toml, the complete input, and metrics.csv, a row for each step.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/io/metrics.hpp>

#include <deque>
#include <memory>
#include <string>

namespace p3d::run {

/// A path relative to the folder in which the run was started, for the log.
std::string from_here(std::string const& path);

/// Makes the output folder before anything large is built. Throws on every rank when rank 0 cannot. Collective.
void make_output_folder(std::string const& folder, comm::Communicator& world);

/// Writes resolved.toml and metrics.csv. Exists on rank 0 only.
///
/// A row that cannot be written (a full disk, a folder that was deleted) is no reason to lose a checkpoint: the run is
/// warned and goes on, the row is kept and tried again with every later one, and what is still missing at the end is an
/// error.
class RunFiles {
public:
  /// A run that goes on from step `start` keeps the rows of the steps up to there. Rows of an earlier metrics.csv that
  /// are not kept are still data: that file, and the other files of an earlier run that would be replaced (experts.csv,
  /// summary.json, resolved.toml, the trace), get the names metrics.N.csv and so on, with the first N that is free for
  /// all. Throws base::Error.
  RunFiles(config::Config const& config, std::int64_t start);
  /// True when there is a row of step `start` that has no validation loss.
  bool lacks_evaluation() const { return taken_over_.last && !taken_over_.last->eval_loss; }
  /// Gives the row of step `start` its validation loss, if it lacks one. To be called before the first write(). Warns
  /// when it cannot.
  void add_evaluation(double loss);
  /// Appends a row, after the ones that could not be written so far. Warns when it cannot.
  void write(base::MetricsRow const& row);
  /// Brings what is written to the disk, before a checkpoint becomes valid. Any thread may call it; it throws nothing.
  void flush() noexcept;
  /// Called at the end of the run: returns why rows are missing; empty when all are there.
  std::string missing();

private:
  /// Writes the rows of waiting_, oldest first, until one cannot be written.
  void write_waiting();

  std::string folder_;
  bool predicts_;  ///< rows have the loss of multi-token prediction
  std::unique_ptr<io::MetricsWriter> metrics_;
  io::MetricsHistory taken_over_;         ///< rows of the earlier file; emptied by the first write()
  std::deque<base::MetricsRow> waiting_;  ///< rows that are not written yet; usually empty
  std::string why_;                       ///< the error of the last row that could not be written; "" when none waits
};

}  // namespace p3d::run
