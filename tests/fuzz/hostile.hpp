// SPDX-License-Identifier: Apache-2.0
#pragma once
// What programs that read hostile files share: the words of their command line, and the file that a crash happens in.

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <unistd.h>

namespace p3d::fuzz {

inline std::string current;  ///< what a crash happens in

/// Calls fuzz(files, seed, number of the first) with the words of the command line.
template <class Fuzz>
int run_fuzz(int argc, char** argv, std::uint64_t rounds, Fuzz const& fuzz) {
  auto const number = [&](int i, std::uint64_t other) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : other;
  };
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) {
    std::signal(signal, [](int which) {
      if (::write(STDERR_FILENO, current.data(), current.size()) < 0) return;
      std::signal(which, SIG_DFL);
      std::raise(which);
    });
  }
  return fuzz(number(1, rounds), number(2, 1), number(3, 0));
}

}  // namespace p3d::fuzz
