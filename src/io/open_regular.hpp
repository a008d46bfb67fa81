// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens files that must be regular ones: opening a FIFO would wait for a writer, and a device has no end.

#include "failure.hpp"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace p3d::io {

/// The kind of a file in words, for messages.
inline char const* kind_of(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a FIFO (named pipe)"
         : S_ISCHR(mode)  ? "a device"
         : S_ISBLK(mode)  ? "a device"
         : S_ISSOCK(mode) ? "a socket"
                          : "something else";
}

/// Opens a file and returns its descriptor, which the caller closes. Never waits for another process. Throws
/// base::Error when the file cannot be opened or is not a regular one (links to one are followed).
inline int open_regular(std::string const& path, int flags, char const* expected) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  struct stat info;
  if (fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  auto const why = last_error();
  // A folder or a FIFO without a reader cannot be opened for writing: the kind of the file tells more than that error.
  bool const known = (fd >= 0 ? ::fstat(fd, &info) : ::stat(path.c_str(), &info)) == 0 && !S_ISREG(info.st_mode);
  if (fd >= 0) ::close(fd);
  if (!known) throw failure(expected, path, why);
  base::refuse({.expected = std::string(expected) + ", a regular file",
                .found = kind_of(info.st_mode),
                .where = path,
                .fix = "name a file, or a link to one"});
}

}  // namespace p3d::io
