// SPDX-License-Identifier: Apache-2.0
// MPI_Finalize: plain where it can be trusted, with a time limit where it cannot.
//
// MPICH before 4.2 cannot be trusted over UCX: a rank asks its peers for a last answer when it disconnects from them,
// but they answer only until they are disconnected themselves; then they block in a barrier of the launcher (mended by
// pmodels/mpich #6596). Over TCP between hosts most runs hang there, whatever the program. All ranks have met before
// and nothing is left to do, so a rank leaves that call after a while, by the way out that the launcher understands.

#include <p3d/base/error.hpp>

#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "internal.hpp"

namespace p3d::comm::detail {

namespace {

constexpr std::string_view goodbye = "cmd=finalize\n", answer = "finalize_ack";
constexpr int longest_answer_ms = 2000;
// A rank that closes its connections first makes the others' MPI complain, so each one waits before it ends.
constexpr timespec for_the_others{0, 300000000};
// MPI_Finalize takes a tenth of this where it returns.
constexpr long patience_us = 500000;

// State of the signal handler.
int the_exit_code = 0;
int launcher = -1;  // the descriptor on which MPICH talks with its launcher
pthread_t main_thread;

/// Tells the launcher that this rank is done; otherwise the launcher takes the end of the process for a crash and kills
/// the others.
void say_goodbye() {
  if (launcher < 0 || write(launcher, goodbye.data(), goodbye.size()) < 0) return;
  std::array<char, 512> text{};
  std::size_t size = 0;
  pollfd ready{launcher, POLLIN, 0};
  while (size < text.size() && poll(&ready, 1, longest_answer_ms) == 1) {
    auto const more = read(launcher, text.data() + size, text.size() - size);
    if (more <= 0) return;
    size += static_cast<std::size_t>(more);
    if (std::string_view(text.data(), size).find(answer) != std::string_view::npos) return;
  }
}

/// The signal handler. It makes only calls that are allowed there.
void leave(int signal) {
  // Only the main thread may talk to the launcher, as MPI_Finalize reads from it too.
  if (!pthread_equal(pthread_self(), main_thread)) {
    pthread_kill(main_thread, signal);
    return;
  }
  say_goodbye();
  nanosleep(&for_the_others, nullptr);
  _exit(the_exit_code);
}

}  // namespace

bool finalize_may_hang(std::string_view library) {
  constexpr std::string_view name = "MPICH Version:";
  auto const at = library.find(name);
  if (at == std::string_view::npos || library.find("ch4:ucx") == std::string_view::npos) return false;
  auto const version = library.substr(std::min(library.find_first_of("0123456789", at + name.size()), library.size()));
  int major = 0, minor = 0;
  auto const [end, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc{} || end == version.data() + version.size() || *end != '.') return false;
  std::from_chars(end + 1, version.data() + version.size(), minor);
  return major < 4 || (major == 4 && minor < 2);
}

void leave_finalize_after_a_while(int exit_code) {
  the_exit_code = exit_code;
  main_thread = pthread_self();
  // PMI_FD belongs to PMI's first wire protocol, which these versions of MPICH use.
  if (char const* text = std::getenv("PMI_FD")) std::from_chars(text, text + std::strlen(text), launcher);
  if (std::fflush(nullptr) != 0 && exit_code == 0) the_exit_code = static_cast<int>(base::ExitCode::run_failed);
  struct sigaction action {};
  action.sa_handler = leave;
  sigaction(SIGALRM, &action, nullptr);
  itimerval const timer{{0, 0}, {0, patience_us}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void stay_after_finalize() {
  itimerval const none{};
  setitimer(ITIMER_REAL, &none, nullptr);
}

}  // namespace p3d::comm::detail
