#pragma once
// Everything of a checkpoint but the numbers, written by one process.

#include "seal.hpp"

#include <p3d/io/checkpoint.hpp>

#include <string>
#include <vector>

namespace p3d::io {

struct Skeleton {
  std::int64_t user_block = 0;
  std::vector<std::int64_t> offsets;  ///< of the arrays, in their order
};

/// Makes the file with all groups, attributes and room for all arrays (not written: the file is sparse). An older file
/// of this name is replaced.
Skeleton make_skeleton(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                       bool moments);

/// Puts the checksums in and seals the file.
void finish_file(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                 bool moments, Skeleton const& skeleton, std::vector<std::uint64_t> const& checksums);

}  // namespace p3d::io
