#pragma once
// Reading and writing at given places of a file, without a shared position: any number of ranks and threads at once.

#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::io {

/// Owns a file descriptor. All members throw base::Error with the path and the system's reason.
class PosixFile {
public:
  enum class Mode { read, write };  ///< write: an existing file, read and written
  PosixFile(std::string path, Mode mode);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }
  PosixFile(PosixFile const&) = delete;
  PosixFile& operator=(PosixFile const&) = delete;

  std::int64_t size() const;
  /// Exactly `bytes` bytes: the end of the file before that is an error.
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  void write(std::int64_t offset, void const* data, std::size_t bytes) const;
  /// Takes disk space for the file's whole size now, so that no later write into it can lack it. Does nothing where the file
  /// system cannot do that.
  void reserve() const;
  /// On disk when it returns.
  void flush() const;
  /// Asks the system to forget its copy of what is on disk, so that the next read comes from there.
  void forget_cache() const;
  std::string const& path() const { return path_; }

private:
  std::string path_;
  int fd_ = -1;
};

/// Makes a rename in this folder last.
void flush_folder(std::string const& folder);
/// Renames and makes it last.
void rename_and_flush(std::string const& from, std::string const& to);

}  // namespace p3d::io
