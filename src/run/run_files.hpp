// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of a run: resolved.toml and metrics.csv in run.output_dir.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/io/metrics.hpp>

#include <deque>
#include <memory>
#include <string>

namespace p3d::run {

/// A path as it is seen from the folder in which the run was started, for the log.
std::string from_here(std::string const& path);

/// Makes the output folder before anything large is built; an error on every rank when rank 0 cannot. Collective.
void make_output_folder(std::string const& folder, comm::Communicator& world);

/// Writes resolved.toml and metrics.csv. Exists on rank 0 only.
///
/// A row that cannot be written (a full disk, a folder that was deleted) is no reason to lose a checkpoint: the run is
/// warned and goes on, the row is kept and tried again with every later one, and what is still missing at the end is an
/// error.
class RunFiles {
public:
  /// A run that goes on from step `start` keeps the rows of the steps up to there. Whatever of an earlier metrics.csv
  /// is not kept is data: that file, and what else of an earlier run would be replaced (experts.csv, summary.json,
  /// resolved.toml, the trace), get the names metrics.N.csv and so on, with the first N that is free for all. Throws
  /// base::Error.
  RunFiles(config::Config const& config, std::int64_t start);
  /// True when there is a row of `start`, without a validation loss.
  bool lacks_evaluation() const { return taken_over_.last && !taken_over_.last->eval_loss; }
  /// Gives the row of `start` its validation loss, if it lacks one; before the first write(). A warning when it cannot.
  void add_evaluation(double loss);
  void write(io::MetricsRow const& row);
  /// Before a checkpoint becomes valid: what is written is on disk. Any thread; throws nothing.
  void flush() noexcept;
  /// At the end of the run: why rows are missing; empty when all are there.
  std::string missing();

private:
  void write_waiting();

  std::string folder_;
  std::unique_ptr<io::MetricsWriter> metrics_;
  io::MetricsHistory taken_over_;       ///< until the first write()
  std::deque<io::MetricsRow> waiting_;  ///< for the disk; usually empty
  std::string why_;
};

}  // namespace p3d::run
