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
  enum class Mode { read, write, create };  ///< write: an existing file, read and written; create: a new one
  PosixFile(std::string path, Mode mode);
  /// Takes a descriptor over.
  PosixFile(int fd, std::string path) : path_(std::move(path)), fd_(fd) {}
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }
  PosixFile(PosixFile const&) = delete;
  PosixFile& operator=(PosixFile const&) = delete;

  std::int64_t size() const;
  /// Exactly `bytes` bytes: the end of the file before that is an error.
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  void write(std::int64_t offset, void const* data, std::size_t bytes) const;
  /// Makes the file as long as this, without writing it.
  void resize(std::int64_t bytes) const;
  /// Takes disk space for the file's whole size now, so that no later write into it can lack it. Does nothing where the
  /// file system cannot do that.
  void reserve() const;
  /// Asks the system to have these bytes in memory soon.
  void read_ahead(std::int64_t offset, std::int64_t bytes) const;
  /// On disk when it returns.
  void flush() const;
  /// Asks the system to forget its copy of what is on disk, so that the next read comes from there.
  void forget_cache() const;
  std::string const& path() const { return path_; }
  /// On a file system of this node alone.
  bool is_local() const;

private:
  std::string path_;
  int fd_ = -1;
};

/// One process of a node at a time writes to a file of a local file system: these keep a lock for each file, and
/// processes that fight for it are 3 to 4 times slower than one (ext4: 4 writers 1.1 to 1.4 s for 1.5 GB, taking turns
/// 0.3 to 0.4 s). Has no effect on the file systems of clusters, which want many writers.
class WritersTurn {
public:
  explicit WritersTurn(PosixFile const& file);
  ~WritersTurn();
  WritersTurn(WritersTurn const&) = delete;
  WritersTurn& operator=(WritersTurn const&) = delete;
  void begin();
  void end();

private:
  int fd_ = -1;  ///< of something that all processes of this node, and no others, can lock
};

/// Makes a rename in this folder last.
void flush_folder(std::string const& folder);
/// Renames and makes it last.
void rename_and_flush(std::string const& from, std::string const& to);
/// Deletes a file. Throws base::Error when it is still there.
void remove_if_there(std::string const& path);

}  // namespace p3d::io
