// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seal in a checkpoint's user block (checkpoint.hpp). It is text, so that `head` shows it:
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

/// The error for a file that is no checkpoint of p3d, or a damaged one. Its exit code is bad_input.
base::Error damaged(std::string const& path, std::string expected, std::string found);

/// A run of bytes of a file.
struct Extent {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;

  bool operator==(Extent const&) const = default;
};

/// Bytes of the user block of a file with so many extents: a power of two (as HDF5 wants it), at least a page.
std::int64_t user_block_bytes(std::size_t extents);

/// Writes the seal over the user block of a file that is otherwise complete. Neighbouring extents are joined.
void write_seal(PosixFile const& file, std::int64_t user_block, std::vector<Extent> extents);

/// The extents sorted by offset, with those that touch each other made one.
std::vector<Extent> joined(std::vector<Extent> extents);

/// The contents of a seal that has been checked.
struct Seal {
  std::int64_t user_block = 0;
  std::vector<Extent> extents;  ///< sorted, not touching each other, behind the user block and within the file
};
/// Reads and checks the seal. Throws base::Error unless the file is whole and every byte that belongs to no extent is
/// as it was sealed. The caller checks that the extents are the arrays.
Seal check_seal(PosixFile const& file);

}  // namespace p3d::io
