// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file of HDF5 in memory that keeps only the pages that were written.

#include "hdf5.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace p3d::io {

/// HDF5 writes the descriptions of a checkpoint here, never to a disk. Two reasons: a file on disk that HDF5 cannot
/// write ends the process in a segmentation fault later (HDF5 1.10, in MPI_Finalize), and when a call of HDF5 hangs,
/// nobody can tell which file operation it is. Neither a full disk nor a limit on the size of files reaches memory.
/// (HDF5's own driver for files in memory, "core", also keeps room for the arrays, which are never written through
/// HDF5.)
class SparseFile {
public:
  /// Sets the property list `access` so that files which are created with it live here. This object must outlive them.
  void use_for(hid_t access);
  /// Length of the file as HDF5 made it; known after a flush.
  std::int64_t size() const { return size_; }
  /// Copies bytes of the file; bytes that were never written are zero.
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  /// Stores bytes. The file grows when they end behind its end.
  void write(std::int64_t offset, void const* data, std::size_t bytes);
  void resize(std::int64_t bytes) { size_ = bytes; }

private:
  /// Calls touch(page, first byte in the page, first byte in the buffer, bytes) for the pages that a range touches.
  template <class Touch>
  static void over_pages(std::int64_t offset, std::size_t bytes, Touch const& touch);

  std::map<std::int64_t, std::vector<char>> pages_;  ///< pages that were written, by number
  std::int64_t size_ = 0;
};

}  // namespace p3d::io
