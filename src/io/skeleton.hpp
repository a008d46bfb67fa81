// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything of a checkpoint but the numbers, written by one process.

#include "seal.hpp"

#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_files.hpp>

#include <memory>
#include <string>
#include <vector>

namespace p3d::io {

/// A file of HDF5 in memory: HDF5 never writes to the disk of a checkpoint (SparseFile says why).
class DescriptionFile;

struct Skeleton {
  std::int64_t user_block = 0;
  std::vector<std::int64_t> offsets;              ///< of the arrays, in their order
  std::shared_ptr<DescriptionFile> descriptions;  ///< the file without the numbers; on the rank that made it
};

/// Makes a file with room for all arrays, and all groups and attributes in memory. An older file of this name is
/// replaced.
Skeleton make_skeleton(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                       bool moments, ModelFiles const& model_files = {});

/// Puts the checksums and all descriptions in and seals the file.
void finish_file(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                 bool moments, Skeleton const& skeleton, std::vector<std::uint64_t> const& checksums);

}  // namespace p3d::io
