// SPDX-License-Identifier: Apache-2.0
#pragma once
// The history of a run as one CSV file: output_dir/metrics.csv, one row per step, written by the root rank.

#include <p3d/base/metrics.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// Writes output_dir/metrics.csv. Each row has been passed to the operating system when write() returns.
class MetricsWriter {
public:
  /// Makes the folder, and replaces an older file by one of the header and `lines` (without line ends). The replacement
  /// is atomic: a reader, or a run that starts again after a kill, finds either the old or the new file whole. Throws
  /// base::Error with path, reason and fix when the folder or file cannot be written. `predicts`: rows have the loss of
  /// multi-token prediction.
  explicit MetricsWriter(std::string const& output_dir, std::vector<std::string> const& lines = {},
                         bool predicts = false);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter const&) = delete;
  MetricsWriter& operator=(MetricsWriter const&) = delete;
  /// Appends a row. Throws base::Error when there is no room, or when the file was deleted or replaced; then nothing of
  /// the row is in the file, and it may be written again.
  void write(base::MetricsRow const& row);
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
  std::vector<std::string> lines;        ///< in order of the steps
  std::optional<base::MetricsRow> last;  ///< the row of `last_step` (which lines.back() is), if it is there
  std::int64_t missing = 0;              ///< steps without a row, after the first row
  std::int64_t dropped = 0;  ///< rows of later steps, rows that were there twice, and lines that are no rows
};
/// Reads the history of a run that goes on after `last_step`. `predicts` as in MetricsWriter. Throws base::Error when
/// it is not a metrics file of such a run at all.
MetricsHistory metrics_until(std::string const& path, std::int64_t last_step, bool predicts = false);

}  // namespace p3d::io
