// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file of HDF5 in memory, of which only the bytes that were written take room.

#include "hdf5.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace p3d::io {

/// HDF5 writes the descriptions of a checkpoint here, never to a disk: a file of it that cannot be written ends the
/// process in a segmentation fault later (HDF5 1.10, in MPI_Finalize), and of a call of it that hangs it cannot be told
/// which one it is. Neither a full disk nor a limit on the size of files reaches memory. (HDF5's own driver for files
/// in memory, "core", holds the arrays too, which nobody wrote.)
class SparseFile {
public:
  /// Makes files that are created with this list of properties live here. This object must outlive them.
  void use_for(hid_t access);
  /// As long as HDF5 made the file; known after a flush.
  std::int64_t size() const { return size_; }
  /// Zero where nothing was written.
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  void write(std::int64_t offset, void const* data, std::size_t bytes);
  void resize(std::int64_t bytes) { size_ = bytes; }

private:
  template <class Touch>
  static void over_pages(std::int64_t offset, std::size_t bytes, Touch const& touch);

  std::map<std::int64_t, std::vector<char>> pages_;  // by number
  std::int64_t size_ = 0;
};

}  // namespace p3d::io
