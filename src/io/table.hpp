// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of /table, and the names of the groups in a checkpoint.

#include "hdf5.hpp"

#include <p3d/io/checkpoint.hpp>

#include <cstdint>
#include <vector>

namespace p3d::io {

/// The group of the parameters; each array of the optimizer's state has one of its own name.
inline constexpr config::StateArray parameters_group{"parameters", "1"};
/// Group of the files beside the model.
inline constexpr char const* model_files_group = "model_files";

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
