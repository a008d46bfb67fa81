// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing at given places of a file, without a shared position: any number of ranks and threads at once.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace p3d::io {

/// Owns a file descriptor. All members throw base::Error with the path and the system's reason.
class PosixFile {
public:
  /// read: an existing file, read only. write: an existing file, read and written. create: a new file, or an old one
  /// emptied.
  enum class Mode { read, write, create };
  PosixFile(std::string path, Mode mode);
  /// Takes ownership of an open descriptor.
  PosixFile(int fd, std::string path) : path_(std::move(path)), fd_(fd) {}
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }
  PosixFile(PosixFile const&) = delete;
  PosixFile& operator=(PosixFile const&) = delete;

  std::int64_t size() const;
  /// Reads exactly `bytes` bytes; the end of the file before that is an error.
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  /// Writes all bytes at `offset`. The file grows when they end behind its end.
  void write(std::int64_t offset, void const* data, std::size_t bytes) const;
  /// Makes the file as long as this, without writing its new bytes.
  void resize(std::int64_t bytes) const;
  /// Takes disk space for the file's whole size now, so that no later write into it can lack space. Does nothing where
  /// the file system cannot do that.
  void reserve() const;
  /// Asks the system to load these bytes into memory soon; returns at once.
  void read_ahead(std::int64_t offset, std::int64_t bytes) const;
  /// Returns when the file's contents are on disk.
  void flush() const;
  /// Asks the system to drop its cached pages of the file, so that the next read comes from the disk.
  void forget_cache() const;
  std::string const& path() const { return path_; }
  /// True when the file lies on a file system of this node alone (ext4, xfs, btrfs).
  bool is_local() const;

private:
  std::string path_;
  int fd_ = -1;
};

/// A lock that lets one process of a node at a time write to files of a local file system. These file systems keep a
/// lock for each file, and processes that fight for it are 3 to 4 times slower than one (ext4: 4 writers at once 1.1 to
/// 1.4 s for 1.5 GB, one after the other 0.3 to 0.4 s). It has no effect on the file systems of clusters, which want
/// many writers.
class WritersTurn {
public:
  explicit WritersTurn(PosixFile const& file);
  ~WritersTurn();
  WritersTurn(WritersTurn const&) = delete;
  WritersTurn& operator=(WritersTurn const&) = delete;
  void begin();
  void end();

private:
  int fd_ = -1;  ///< a folder that all processes of this node, and no others, can lock; -1: no lock is taken
};

/// Makes the renames and deletions in this folder last (fsync of the folder).
void flush_folder(std::string const& folder);
/// Renames a file and makes the new name last.
void rename_and_flush(std::string const& from, std::string const& to);
/// Deletes a file; a file that does not exist is no error. Throws base::Error when it is still there.
void remove_if_there(std::string const& path);

}  // namespace p3d::io
