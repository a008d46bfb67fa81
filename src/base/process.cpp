// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/process.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace p3d::base {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

void raise_open_files() {
  constexpr rlim_t enough = 1 << 16;  // libraries that close all possible files would take long over a billion
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  auto const wanted = std::min(limit.rlim_max, enough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));  // with fewer files it works as before
}

std::int64_t proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    std::int64_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  for (int const error : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, error);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void let_last_message_out() { usleep(300000); }

}  // namespace p3d::base
