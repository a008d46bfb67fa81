// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seal in a checkpoint's user block (checkpoint.hpp). Text, so that `head` shows it:
//
//   p3d checkpoint 1
//   user_block 00000000000000004096      bytes
//   file_bytes 00000000000000123456
//   other_hash 0123456789abcdef          of the bytes after the user block that belong to no extent
//   extents 2
//   8192 73728                           first byte and number of bytes, in order
//   98304 4096
//   (empty lines)
//   0123456789abcdef                     hash of the user block up to here, in its last 17 bytes

#include "posix_file.hpp"

#include <p3d/base/error.hpp>

#include <cstdint>
#include <vector>

namespace p3d::io {

/// The error of a file that is no checkpoint of p3d, or a damaged one. Exit code: bad_input.
base::Error damaged(std::string const& path, std::string expected, std::string found);

struct Extent {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;

  bool operator==(Extent const&) const = default;
};

/// Room for the seal of a file with so many extents: a power of two (as HDF5 wants it), at least a page.
std::int64_t user_block_bytes(std::size_t extents);

/// Writes the seal over the user block of a file that is otherwise complete. Neighbouring extents become one.
void write_seal(PosixFile const& file, std::int64_t user_block, std::vector<Extent> extents);

/// In order of their places, neighbours joined.
std::vector<Extent> joined(std::vector<Extent> extents);

struct Seal {
  std::int64_t user_block = 0;
  std::vector<Extent> extents;  ///< in order, apart from each other, behind the user block and within the file
};
/// Throws base::Error unless the file is whole and every byte that belongs to no extent is as it was sealed. That the
/// extents are the arrays is for the caller to check.
Seal check_seal(PosixFile const& file);

}  // namespace p3d::io
