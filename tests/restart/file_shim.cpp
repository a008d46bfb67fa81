// SPDX-License-Identifier: Apache-2.0
// Stands between a program and the C library (LD_PRELOAD) and does what a disk or a kill would do, at a chosen call.
//
//   P3D_SHIM="ACTION:CALL:PART:N;..."    at the N-th CALL on a file whose path contains PART (from 1; 0: at every one)
//   ACTION   block   the call never returns
//            kill    SIGKILL to this process before the call
//            tear    half of a write, then SIGKILL
//            full    ENOSPC
//            gone    the file is deleted (unlink), then the call
//            usr1    SIGUSR1 to this process, then the call
//            none    ENOLCK, as of a file system without locks
//            slow    the call, S seconds later: slowS
//   P3D_SHIM_RANK=N: on this rank alone.
//   CALL     open read write fsync rename unlink link ftruncate futimens lock; pwrite counts as write, only pread as
//            read, flock and fcntl's locks as lock. rename: the new name counts.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

struct Rule {
  std::string action, call, part;
  long number = 0;
  std::atomic<long> seen{0};
};

std::vector<Rule*> const& rules() {
  static auto const* all = [] {
    auto* out = new std::vector<Rule*>;
    char const* text = std::getenv("P3D_SHIM");
    if (char const* only = std::getenv("P3D_SHIM_RANK")) {
      bool mine = false;
      for (char const* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
        char const* rank = std::getenv(name);
        mine |= rank != nullptr && std::strcmp(rank, only) == 0;
      }
      if (!mine) text = "";
    }
    std::string rest = text != nullptr ? text : "";
    while (!rest.empty()) {
      auto const end = rest.find(';');
      std::string words = rest.substr(0, end);
      rest = end == std::string::npos ? "" : rest.substr(end + 1);
      std::vector<std::string> parts(1);
      for (char c : words) {
        if (c == ':')
          parts.emplace_back();
        else
          parts.back() += c;
      }
      if (parts.size() != 4) std::abort();
      auto* rule = new Rule;
      rule->action = parts[0], rule->call = parts[1], rule->part = parts[2], rule->number = std::atol(parts[3].c_str());
      out->push_back(rule);
    }
    return out;
  }();
  return *all;
}

std::string path_of(int fd) {
  char name[64], path[4096];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  auto const n = ::readlink(name, path, sizeof path - 1);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : std::string();
}

/// The action for this call; "" almost always.
std::string act(char const* call, std::string const& path) {
  for (auto* rule : rules()) {
    if (rule->call != call || path.find(rule->part) == std::string::npos) continue;
    auto const n = ++rule->seen;
    if (rule->number != 0 && n != rule->number) continue;
    if (rule->action == "kill") ::kill(::getpid(), SIGKILL);
    while (rule->action == "block" || rule->action == "kill") ::pause();
    if (rule->action == "gone") (void)::unlinkat(AT_FDCWD, path.c_str(), 0);
    if (rule->action == "usr1") ::kill(::getpid(), SIGUSR1);
    if (rule->action.starts_with("slow")) ::sleep(static_cast<unsigned>(std::atoi(rule->action.c_str() + 4)));
    return rule->action;
  }
  return "";
}

bool no_locks(int fd) {
  bool const none = act("lock", path_of(fd)) == "none";
  if (none) errno = ENOLCK;
  return none;
}

bool full(std::string const& action) {
  if (action == "full") errno = ENOSPC;
  return action == "full";
}

template <class F>
F next(char const* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

template <class Write>
ssize_t tearable(int fd, std::size_t bytes, Write&& write) {
  if (rules().empty()) return write(bytes);
  auto const action = act("write", path_of(fd));
  if (full(action)) return -1;
  if (action == "tear") {
    (void)write(bytes / 2);
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  return write(bytes);
}

}  // namespace

extern "C" {

ssize_t write(int fd, void const* data, std::size_t bytes) {
  static auto const real = next<ssize_t (*)(int, void const*, std::size_t)>("write");
  return tearable(fd, bytes, [&](std::size_t n) { return real(fd, data, n); });
}
ssize_t pwrite64(int fd, void const* data, std::size_t bytes, off64_t offset) {
  static auto const real = next<ssize_t (*)(int, void const*, std::size_t, off64_t)>("pwrite64");
  return tearable(fd, bytes, [&](std::size_t n) { return real(fd, data, n, offset); });
}
ssize_t pwrite(int fd, void const* data, std::size_t bytes, off_t offset) { return pwrite64(fd, data, bytes, offset); }

ssize_t pread64(int fd, void* data, std::size_t bytes, off64_t offset) {
  static auto const real = next<ssize_t (*)(int, void*, std::size_t, off64_t)>("pread64");
  return !rules().empty() && full(act("read", path_of(fd))) ? -1 : real(fd, data, bytes, offset);
}
ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) { return pread64(fd, data, bytes, offset); }

int fsync(int fd) {
  static auto const real = next<int (*)(int)>("fsync");
  return full(act("fsync", path_of(fd))) ? -1 : real(fd);
}
int ftruncate64(int fd, off64_t size) {
  static auto const real = next<int (*)(int, off64_t)>("ftruncate64");
  return full(act("ftruncate", path_of(fd))) ? -1 : real(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int futimens(int fd, timespec const times[2]) {
  static auto const real = next<int (*)(int, timespec const*)>("futimens");
  return full(act("futimens", path_of(fd))) ? -1 : real(fd, times);
}
int rename(char const* from, char const* to) {
  static auto const real = next<int (*)(char const*, char const*)>("rename");
  return full(act("rename", to)) ? -1 : real(from, to);
}
int unlink(char const* path) {
  static auto const real = next<int (*)(char const*)>("unlink");
  return full(act("unlink", path)) ? -1 : real(path);
}
int remove(char const* path) {
  static auto const real = next<int (*)(char const*)>("remove");
  return full(act("unlink", path)) ? -1 : real(path);
}
int link(char const* from, char const* to) {
  static auto const real = next<int (*)(char const*, char const*)>("link");
  return full(act("link", to)) ? -1 : real(from, to);
}

int flock(int fd, int operation) {
  static auto const real = next<int (*)(int, int)>("flock");
  return no_locks(fd) ? -1 : real(fd, operation);
}
int fcntl64(int fd, int command, ...) {
  static auto const real = next<int (*)(int, int, ...)>("fcntl64");
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  bool const locks = command == F_OFD_SETLK || command == F_SETLK;
  return locks && no_locks(fd) ? -1 : real(fd, command, argument);
}
int fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return fcntl64(fd, command, argument);
}

int open64(char const* path, int flags, ...) {
  static auto const real = next<int (*)(char const*, int, ...)>("open64");
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  return full(act("open", path)) ? -1 : real(path, flags, mode);
}
int open(char const* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  return open64(path, flags, mode);
}

}  // extern "C"
