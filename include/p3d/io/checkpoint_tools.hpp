// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tools with which one process inspects checkpoint files (p3d checkpoint verify, diff), with a buffer of a few MiB.

#include <p3d/io/checkpoint.hpp>

#include <string>
#include <vector>

namespace p3d::io {

/// The result of reading through one array.
struct ArrayScan {
  std::string name;
  std::uint64_t checksum = 0;  ///< checksum of the numbers that the file holds now
  bool good = false;           ///< `checksum` is the stored one
  double norm = 0.0;           ///< L2 norm
  double smallest = 0.0, largest = 0.0;
};
/// Reads through one array of a file.
ArrayScan scan(Checkpoint const& checkpoint, CheckpointArray const& array);

/// How one array differs between two files.
struct ArrayDifference {
  std::string name;
  std::string only_in;                  ///< the path of the one file that has it (with this shape), or ""
  double largest = 0.0;                 ///< largest absolute difference; infinite where one of the two is not a number
  std::int64_t row = 0, col = 0;        ///< position of the largest difference
  double a = 0.0, b = 0.0;              ///< the two numbers there
  std::int64_t differing = 0;           ///< elements whose bits differ
  std::vector<std::string> damaged_in;  ///< paths of the files whose numbers have not the stored checksum
};
/// Compares every array of either file, in the order of `a`; arrays that only `b` has come last.
std::vector<ArrayDifference> difference(Checkpoint const& a, Checkpoint const& b);

}  // namespace p3d::io
