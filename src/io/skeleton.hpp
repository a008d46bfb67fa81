// SPDX-License-Identifier: Apache-2.0
#pragma once
// The skeleton of a checkpoint: everything but the numbers. One process writes it.

#include "seal.hpp"

#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_files.hpp>

#include <memory>
#include <string>
#include <vector>

namespace p3d::io {

/// A file of HDF5 in memory: HDF5 never writes to the disk of a checkpoint (SparseFile says why).
class DescriptionFile;

/// A file that has been made and not yet filled.
struct Skeleton {
  std::int64_t user_block = 0;
  std::vector<std::int64_t> offsets;  ///< first bytes of the arrays in the file, in the order of checkpoint_arrays()
  std::shared_ptr<DescriptionFile> descriptions;  ///< the file without the numbers; only on the rank that made it
};

/// Makes the file `path` with room for all arrays, and its groups and attributes in memory. An older file of this name
/// is replaced.
Skeleton make_skeleton(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                       config::StateArrays state, ModelFiles const& model_files = {});

/// Adds the checksums, writes all descriptions and seals the file. The numbers must be on disk.
void finish_file(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                 config::StateArrays state, Skeleton const& skeleton, std::vector<std::uint64_t> const& checksums);

}  // namespace p3d::io
