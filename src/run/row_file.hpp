// SPDX-License-Identifier: Apache-2.0
#pragma once
// A CSV file in run.output_dir whose rows begin with a step, beside metrics.csv: a help for the eye and no part of the
// run's history. Where it cannot be written the run is warned once and goes on.

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

namespace p3d::run {

/// A file of rows. Exists on rank 0 only.
class RowFile {
public:
  /// Keeps the whole rows of an earlier file up to step `start`: lines for which `is_row` is true, and which begin with
  /// a step and a comma. A last line that was cut off is dropped. `header` ends with a line's end. Throws base::Error
  /// when the file cannot be made.
  RowFile(std::string path, std::int64_t start, std::string const& header,
          std::function<bool(std::string const& line)> const& is_row);
  /// Appends rows, each with its line's end. Throws nothing: the first rows that cannot be written give a warning.
  void append(std::string const& rows);

private:
  std::string path_;
  std::ofstream file_;
  bool warned_ = false;  ///< the run was told that the file cannot be written
};

}  // namespace p3d::run
