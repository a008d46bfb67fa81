// SPDX-License-Identifier: Apache-2.0
#pragma once
// The history of a run as one CSV file: output_dir/metrics.csv, one row per step, written by the root rank.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// The record of one step: one row of the file.
struct MetricsRow {
  std::int64_t step = 0;    ///< steps done, from 1
  std::int64_t tokens = 0;  ///< tokens trained on so far
  double loss = 0.0;        ///< mean cross entropy of the global batch, nats per token
  double grad_norm = 0.0;   ///< global norm before clipping
  double lr = 0.0;
  double step_ms = 0.0;             ///< wall time of the step
  double tokens_per_s = 0.0;        ///< tokens of all ranks per second
  std::optional<double> eval_loss;  ///< nats per token; empty when this step did not evaluate

  bool operator==(MetricsRow const&) const = default;
};

/// The first line of the file.
inline constexpr char const* metrics_header = "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss";

/// Formats a row as its line of the file, without the line's end. Numbers are the shortest decimals that read back as
/// the same double.
std::string format(MetricsRow const& row);

/// Writes output_dir/metrics.csv. Each row has been passed to the operating system when write() returns.
class MetricsWriter {
public:
  /// Makes the folder, and replaces an older file by one of the header and `lines` (without line ends). The replacement
  /// is atomic: a reader, or a run that starts again after a kill, finds either the old or the new file whole. Throws
  /// base::Error with path, reason and fix when the folder or file cannot be written.
  explicit MetricsWriter(std::string const& output_dir, std::vector<std::string> const& lines = {});
  ~MetricsWriter();
  MetricsWriter(MetricsWriter const&) = delete;
  MetricsWriter& operator=(MetricsWriter const&) = delete;
  /// Appends a row. Throws base::Error when there is no room, or when the file was deleted or replaced; then nothing of
  /// the row is in the file, and it may be written again.
  void write(MetricsRow const& row);
  /// Throws base::Error when the file was deleted or replaced.
  void check() const;
  /// Flushes all rows to disk. May be called by another thread.
  void flush() const;
  std::string const& path() const { return path_; }

private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;  ///< bytes of whole lines
};

/// The rows, as they were written, of a file that a killed run may have left: one for each step up to `last_step`.
struct MetricsHistory {
  std::vector<std::string> lines;  ///< in order of the steps
  std::optional<MetricsRow> last;  ///< the row of `last_step` (which lines.back() is), if it is there
  std::int64_t missing = 0;        ///< steps without a row, after the first row
  std::int64_t dropped = 0;        ///< rows of later steps, rows that were there twice, and lines that are no rows
};
/// Reads the history of a run that goes on after `last_step`. Throws base::Error when it is not a metrics file at all.
MetricsHistory metrics_until(std::string const& path, std::int64_t last_step);

/// Reads a metrics file back. Throws base::Error, with the line, unless it is one.
std::vector<MetricsRow> read_metrics(std::string const& path);

/// The rows of a file that a run may be writing, or may have left in the middle of a row.
struct MetricsSoFar {
  std::vector<MetricsRow> rows;  ///< in order of the steps
  bool cut_off = false;          ///< the last line has no end: it is not among the rows
};
/// Reads such a file. Throws base::Error (bad_input), with the line, for any other line that is no row, and for steps
/// that do not ascend.
MetricsSoFar read_metrics_so_far(std::string const& path);

}  // namespace p3d::io
