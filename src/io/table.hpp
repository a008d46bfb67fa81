// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of /table, and the names of the groups in a checkpoint.

#include "hdf5.hpp"

#include <p3d/io/checkpoint.hpp>

#include <cstdint>
#include <vector>

namespace p3d::io {

/// Groups of the arrays: the parameters, then the two moments of AdamW.
inline constexpr char const* groups[3] = {"parameters", "first_moment", "second_moment"};
/// Group of the files beside the model.
inline constexpr char const* model_files_group = "model_files";
/// Units of the arrays in these groups (the loss is a number).
inline constexpr char const* units[3] = {"1", "1/parameter", "1/parameter^2"};

/// A row of /table: the same bytes in memory and in the file.
struct TableRecord {
  char name[120];
  std::int64_t rows;  ///< 0: a vector
  std::int64_t cols;
  std::int64_t layer;
  std::int64_t decay;
  char unit[8];
};

/// Makes the HDF5 type of a record; the caller closes it.
hid_t record_type();
/// Makes the records of the rows. Throws when a name is too long.
std::vector<TableRecord> pack(std::vector<TableRow> const& rows);
/// Makes the rows of the records, which must have been checked.
std::vector<TableRow> unpack(std::vector<TableRecord> const& records);

}  // namespace p3d::io
