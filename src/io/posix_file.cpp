// SPDX-License-Identifier: Apache-2.0
// Files by descriptor, with pread and pwrite. Each call to the system stands inside a FileOperation, so that one that
// never returns is reported (file_watch.hpp), and is repeated when a signal interrupts it (EINTR) or when it moves
// fewer bytes than were asked for. Example: a pread that gives 1 MiB of 4 is called again for the other 3.
#include "posix_file.hpp"

#include "open_regular.hpp"

#include <p3d/base/timer.hpp>
#include <p3d/io/file_watch.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif
#include <unistd.h>

namespace p3d::io {

PosixFile::PosixFile(std::string path, Mode mode) : path_(std::move(path)) {
  FileOperation const here("open", path_);
  bool const reads = mode == Mode::read;
  fd_ = open_regular(path_,
                     reads                 ? O_RDONLY
                     : mode == Mode::write ? O_RDWR
                                           : O_RDWR | O_CREAT | O_TRUNC,
                     reads ? "a checkpoint that can be read" : "a checkpoint that can be written");
}

PosixFile::~PosixFile() {
  FileOperation const here("close", path_);  // some file systems write only at close
  if (fd_ >= 0) ::close(fd_);
}

std::int64_t PosixFile::size() const {
  struct stat info;
  FileOperation const here("fstat", path_);
  if (::fstat(fd_, &info) != 0) throw failure("a checkpoint that can be read", path_, last_error());
  return info.st_size;
}

void PosixFile::read(std::int64_t offset, void* out, std::size_t bytes) const {
  auto* to = static_cast<char*>(out);
  FileOperation const here("read", path_);
  while (bytes > 0) {
    auto const got = ::pread(fd_, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw failure("a checkpoint that can be read", path_, last_error());
    if (got == 0) {
      throw base::Error({.expected = fmt::format("{} more bytes at byte {}", bytes, offset),
                         .found = "the end of the file: it was cut off",
                         .where = path_,
                         .fix = "use an older checkpoint, or copy the file again"});
    }
    to += got;
    offset += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void PosixFile::write(std::int64_t offset, void const* data, std::size_t bytes) const {
  auto const* from = static_cast<char const*>(data);
  FileOperation here("write", path_);
  while (bytes > 0) {
    auto const put = ::pwrite(fd_, from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw failure("room for the whole checkpoint", path_, last_error());
    from += put;
    offset += put;
    bytes -= static_cast<std::size_t>(put);
    // A long write is many operations for the watch: each has the whole time budget.
    if (bytes > 0) here.next("write");
  }
}

void PosixFile::resize(std::int64_t bytes) const {
  FileOperation const here("ftruncate", path_);
  while (::ftruncate(fd_, bytes) != 0) {
    if (errno != EINTR) throw failure("room for the whole checkpoint", path_, last_error());
  }
}

void PosixFile::reserve() const {
#ifdef __linux__
  int status = 0;
  FileOperation const here("fallocate", path_);
  do {
    status =
        ::fallocate(fd_, 0, 0, size());  // not posix_fallocate, which writes the file where the system cannot reserve
  } while (status != 0 && errno == EINTR);
  if (status != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    throw failure("room for the whole checkpoint", path_, last_error());
#endif
}

void PosixFile::flush() const {
  FileOperation const here("fsync", path_);
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) throw failure("a checkpoint that reaches the disk", path_, last_error());
  }
}

void PosixFile::read_ahead(std::int64_t offset, std::int64_t bytes) const {
  ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
}

void PosixFile::forget_cache() const { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

bool PosixFile::is_local() const {
  FileOperation const here("fstatfs", path_);
#ifdef __linux__
  struct statfs info;
  if (::fstatfs(fd_, &info) != 0) return false;
  constexpr unsigned long ext4 = 0xef53, xfs = 0x58465342, btrfs = 0x9123683e;
  auto const type = static_cast<unsigned long>(info.f_type);
  return type == ext4 || type == xfs || type == btrfs;
#else
  return false;
#endif
}

namespace {
constexpr char const* turns_folder = "/dev/shm";  ///< its lock is the turn of all p3d processes of a node

/// Seconds after which a process writes without the lock: well before its wait looks like a disk that hangs.
double turn_patience() { return std::min(5.0, 0.5 * file_timeout()); }
}  // namespace

WritersTurn::WritersTurn(PosixFile const& file) {
  if (file.is_local()) fd_ = ::open(turns_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

WritersTurn::~WritersTurn() {
  if (fd_ >= 0) ::close(fd_);
}

void WritersTurn::begin() {
  if (fd_ < 0) return;
  // This is no blocking flock: the process that has the lock may hang or be stopped, and only speed is lost without it.
  // It may belong to another run, so the ranks that wait for this one must be told that it is at work.
  FileOperation const here("flock", turns_folder);
  double const patience = turn_patience();
  base::Stopwatch waited;
  for (useconds_t pause = 20; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; pause = std::min<useconds_t>(2 * pause, 1000)) {
    if (errno == EINTR || (errno == EWOULDBLOCK && waited.seconds() < patience)) {
      ::usleep(pause);
      continue;
    }
    ::close(fd_);
    fd_ = -1;
    return;
  }
}

void WritersTurn::end() {
  if (fd_ >= 0) ::flock(fd_, LOCK_UN);
}

void flush_folder(std::string const& folder) {
  FileOperation here("open", folder);
  int const fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw failure("a folder that can be read", folder, last_error());
  here.next("fsync");
  int const status = ::fsync(fd);
  auto const why = last_error();
  ::close(fd);
  if (status != 0 && why.value() != EINVAL) throw failure("a folder that reaches the disk", folder, why);
}

void rename_and_flush(std::string const& from, std::string const& to) {
  {
    FileOperation const here("rename", from);
    if (std::rename(from.c_str(), to.c_str()) != 0)
      throw failure("a checkpoint that can get its name", to, last_error());
  }
  flush_folder(std::filesystem::path(to).parent_path().string());
}

void remove_if_there(std::string const& path) {
  FileOperation const here("unlink", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw failure("a file that can be deleted", path, last_error());
}

}  // namespace p3d::io
