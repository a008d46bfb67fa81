// SPDX-License-Identifier: Apache-2.0
// A file without a name, on a disk of the node. Its space is reserved when it is made. With O_DIRECT the page cache is
// not used at all. Elsewhere the pages of a write are sent to the disk at once and dropped from the cache a few pieces
// later, when they are on disk; the pages of a read are dropped at once.
#include "unnamed_file.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include "swap_hooks.hpp"

namespace p3d::device::detail {

namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

/// Opens a file in the folder that has no name any more. Returns its descriptor, or -1 with errno set.
int open_unnamed(std::string const& folder) {
#if defined(O_TMPFILE)
  if (swap_hooks().unnamed) {
    int const fd = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;  // else the file system has no such files, or an error that shows again below
  }
#endif
  auto path = fmt::format("{}/{}-{}-XXXXXX", folder, UnnamedFile::name, ::getpid());
  int const fd = ::mkstemp(path.data());
  if (fd < 0) return fd;
  ::unlink(path.c_str());
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

/// The free bytes of the file's file system; INT64_MAX where it does not say.
std::int64_t free_bytes(int fd) {
  struct statvfs info {};
  if (::fstatvfs(fd, &info) != 0) return INT64_MAX;
  auto const most = static_cast<std::uint64_t>(INT64_MAX) / std::max<std::uint64_t>(1, info.f_frsize);
  auto const blocks = std::min<std::uint64_t>(info.f_bavail, most);
  return std::min(swap_hooks().free_bytes, static_cast<std::int64_t>(blocks * info.f_frsize));
}

/// True where the file system is in memory.
bool is_memory(int fd) {
#if defined(__linux__)
  constexpr unsigned long tmpfs = 0x01021994, ramfs = 0x858458f6;
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return false;
  auto const type = static_cast<unsigned long>(info.f_type);
  return type == tmpfs || type == ramfs;
#else
  static_cast<void>(fd);
  return false;
#endif
}

/// The pieces that are under way to the disk at once: waiting for each costs three quarters of the speed.
constexpr std::size_t most_cached = 4;

/// Drops pages of the file from the page cache.
void drop_pages(int fd, std::int64_t offset, std::size_t bytes) {
#if defined(POSIX_FADV_DONTNEED)
  ::posix_fadvise(fd, offset, static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
#else
  static_cast<void>(fd), static_cast<void>(offset), static_cast<void>(bytes);
#endif
}

/// Reserves space for the file. Returns 0 or errno.
int take_room(int fd, std::int64_t bytes) {
#if defined(__linux__)
  // posix_fallocate is not used: it writes into every block where the file system cannot reserve.
  int status = 0;
  do {
    status = ::fallocate(fd, 0, 0, bytes);
  } while (status != 0 && errno == EINTR);
  if (status == 0 || (errno != EOPNOTSUPP && errno != ENOSYS)) return status == 0 ? 0 : errno;
#endif
  return ::ftruncate(fd, bytes) == 0 ? 0 : errno;
}

}  // namespace

SwapHooks& swap_hooks() {
  static SwapHooks hooks;
  return hooks;
}

UnnamedFile::UnnamedFile(std::string const& folder, std::int64_t bytes) {
  // A file that reaches the limit of its size is an error to report; the signal would end the process.
  static auto const ignored = std::signal(SIGXFSZ, SIG_IGN);
  static_cast<void>(ignored);
  fd_ = open_unnamed(folder);
  if (fd_ < 0) {
    throw base::Error({.expected = "a folder in which a swap file can be made",
                       .found = text_of(errno),
                       .where = folder,
                       .fix = "make the folder, or name one on a disk of the node in memory.offload_dir"});
  }
  try {
    reserve(folder, bytes);
  } catch (...) {
    ::close(fd_);
    throw;
  }
  in_memory_ = is_memory(fd_);
#if defined(O_DIRECT)
  direct_ = swap_hooks().direct && !in_memory_ && ::fcntl(fd_, F_SETFL, O_DIRECT) == 0;
#endif
}

UnnamedFile::~UnnamedFile() { ::close(fd_); }

void UnnamedFile::reserve(std::string const& folder, std::int64_t bytes) {
  auto const free = free_bytes(fd_);
  int const error = free < bytes ? ENOSPC : take_room(fd_, bytes);
  if (error == 0) return;
  auto const human = [](std::int64_t n) { return base::human_bytes(static_cast<double>(n)); };
  throw base::Error({.expected = fmt::format("room for a swap file of {}", human(bytes)),
                     .found = fmt::format("{} free ({})", human(free), text_of(error)),
                     .where = folder,
                     .fix = "name a folder on a larger disk of the node in memory.offload_dir, offload less, or run "
                            "fewer ranks on a node"});
}

/// Calls call(place in the file, bytes done) until all bytes are through. Returns 0 or errno.
template <class Call>
int UnnamedFile::transfer(std::int64_t offset, std::size_t bytes, Call&& call) {
  for (std::size_t done = 0; done < bytes;) {
    auto const n = call(offset + static_cast<std::int64_t>(done), done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return EIO;
#if defined(O_DIRECT)
    } else if (errno == EINVAL && direct_) {  // a disk of other sectors: go through the cache
      ::fcntl(fd_, F_SETFL, 0);
      direct_ = false;
#endif
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int UnnamedFile::write(std::int64_t offset, std::byte const* from, std::size_t bytes) {
  int const error = transfer(offset, bytes, [&](std::int64_t place, std::size_t done) {
    return ::pwrite(fd_, from + done, bytes - done, place);
  });
  if (error != 0 || direct_ || in_memory_) return error;
#if defined(__linux__)
  ::sync_file_range(fd_, offset, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);  // only starts to write
#endif
  cached_.push_back({offset, bytes});
  return cached_.size() > most_cached ? drop_oldest() : 0;
}

int UnnamedFile::read(std::int64_t offset, std::byte* to, std::size_t bytes) {
  int const error = transfer(offset, bytes, [&](std::int64_t place, std::size_t done) {
    return ::pread(fd_, to + done, bytes - done, place);
  });
  if (error == 0 && !direct_ && !in_memory_) drop_pages(fd_, offset, bytes);
  return error;
}

void UnnamedFile::read_ahead(std::int64_t offset, std::size_t bytes) {
#if defined(POSIX_FADV_WILLNEED)
  if (!direct_ && !in_memory_) ::posix_fadvise(fd_, offset, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
#else
  static_cast<void>(offset), static_cast<void>(bytes);
#endif
}

int UnnamedFile::leave_cache() {
  int error = 0;
  while (!cached_.empty()) {
    int const next = drop_oldest();
    error = error == 0 ? next : error;
  }
  return error;
}

/// Waits until the oldest piece is on disk: its pages can leave the cache only then.
int UnnamedFile::drop_oldest() {
  auto const [offset, bytes] = cached_.front();
  cached_.pop_front();
#if defined(__linux__)
  int const status =
      ::sync_file_range(fd_, offset, static_cast<off_t>(bytes),
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
#else
  int const status = ::fsync(fd_);
#endif
  if (status != 0 && errno != ENOSYS && errno != ESPIPE) return errno;
  drop_pages(fd_, offset, bytes);
  return 0;
}

}  // namespace p3d::device::detail
