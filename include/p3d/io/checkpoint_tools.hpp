// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one process can find out about checkpoint files, with a buffer of a few MiB.

#include <p3d/io/checkpoint.hpp>

#include <string>
#include <vector>

namespace p3d::io {

/// One array, read through.
struct ArrayScan {
  std::string name;
  std::uint64_t checksum = 0;  ///< of what the file holds now
  bool good = false;           ///< it is the stored one
  double norm = 0.0;           ///< L2
  double smallest = 0.0, largest = 0.0;
};
ArrayScan scan(Checkpoint const& checkpoint, CheckpointArray const& array);

/// One array of two files.
struct ArrayDifference {
  std::string name;
  std::string only_in;   ///< the path of the one file that has it (with this shape), or ""
  double largest = 0.0;  ///< largest absolute difference; infinite where one of the two is not a number
  std::int64_t row = 0, col = 0;
  double a = 0.0, b = 0.0;              ///< the numbers there
  std::int64_t differing = 0;           ///< elements whose bits differ
  std::vector<std::string> damaged_in;  ///< paths of the files whose numbers have not the stored checksum
};
/// Every array of either file, in the order of `a`.
std::vector<ArrayDifference> difference(Checkpoint const& a, Checkpoint const& b);

}  // namespace p3d::io
