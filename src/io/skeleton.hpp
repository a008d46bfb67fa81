#pragma once
// Everything of a checkpoint but the numbers, written by one process.

#include "seal.hpp"

#include <p3d/io/checkpoint.hpp>

#include <memory>
#include <string>
#include <vector>

namespace p3d::io {

/// A sparse file in memory, with a name that HDF5 can open. A file of HDF5 that cannot be closed (a full disk) ends the
/// process in a segmentation fault later (HDF5 1.10 at MPI_Finalize), and a call of it that hangs cannot be told which
/// one it is: so HDF5 never writes to a disk.
class MemoryFile {
public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;
  std::string const& path() const { return path_; }

private:
  int fd_ = -1;
  std::string path_;
  bool named_ = false;  ///< no memory files on this system: a temporary file
};

struct Skeleton {
  std::int64_t user_block = 0;
  std::vector<std::int64_t> offsets;         ///< of the arrays, in their order
  std::shared_ptr<MemoryFile> descriptions;  ///< the file without the numbers; on the rank that made it
};

/// Makes a file with room for all arrays, and all groups and attributes in memory. An older file of this name is
/// replaced.
Skeleton make_skeleton(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                       bool moments);

/// Puts the checksums and all descriptions in and seals the file.
void finish_file(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                 bool moments, Skeleton const& skeleton, std::vector<std::uint64_t> const& checksums);

}  // namespace p3d::io
