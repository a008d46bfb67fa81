// SPDX-License-Identifier: Apache-2.0
// The first signal only sets flags: a run acts on them between two steps, where all ranks are in a known state.
#include <p3d/run/signals.hpp>

#include <p3d/base/error.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <unistd.h>

namespace p3d::run {

namespace {

constexpr double same_request_s = 0.5;    ///< signals within it are one request
constexpr unsigned longest_start_s = 10;  ///< a rank waits so long for the first step
constexpr char const* answer = "\np3d: stopping after this step; another signal stops at once\n";
constexpr char const* early_answer = "\np3d: stopping before the first step\n";

// The flags are atomic, as a library's thread may take a signal while this one is inside a GEMM, which takes none.
std::atomic<int> received = 0;
std::atomic<double> received_at = 0.0;
std::atomic<bool> answers = false;
std::atomic<bool> in_steps = false;
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free,
              "used in a signal handler");

/// Writes to stderr with write(), which may be called in a signal handler.
void say(char const* text) {
  if (answers && write(STDERR_FILENO, text, std::strlen(text)) < 0) answers = false;
}

double now() {  // clock_gettime may be called in a signal handler
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Handles the signals that ask for a stop.
void handler(int signal) {
  if (received != 0) {
    if (now() - received_at > same_request_s) _exit(128 + signal);
    return;
  }
  int const error = errno;
  received_at = now();
  received = signal;
  say(!in_steps ? early_answer : answer);
  // There is nothing to save, but ranks that leave one by one give the launcher no clear exit code: they leave together
  // when all are ready for the first step, and on their own only when that takes long.
  if (!in_steps) alarm(longest_start_s);
  errno = error;
}

/// Handles the alarm: the first step did not come in time, so this rank leaves alone.
void leave(int) { _exit(static_cast<int>(base::ExitCode::interrupted)); }

using Handler = void (*)(int);
Handler old_int = SIG_DFL;
Handler old_term = SIG_DFL;
Handler old_usr1 = SIG_DFL;
Handler old_pipe = SIG_DFL;
}  // namespace

SignalGuard::SignalGuard(bool speaks) {
  received = 0;
  in_steps = false;
  answers = speaks;
  old_int = std::signal(SIGINT, handler);
  old_term = std::signal(SIGTERM, handler);
  old_usr1 = std::signal(SIGUSR1, handler);
  std::signal(SIGALRM, leave);
  // The reader of the log may end, as in `p3d input.toml | head`: the run and its checkpoints go on.
  old_pipe = std::signal(SIGPIPE, SIG_IGN);
}

SignalGuard::~SignalGuard() {
  std::signal(SIGINT, old_int);
  std::signal(SIGTERM, old_term);
  std::signal(SIGUSR1, old_usr1);
  std::signal(SIGPIPE, old_pipe);
}

void SignalGuard::steps_begin() {
  in_steps = true;
  alarm(0);
  std::signal(SIGALRM, SIG_DFL);
}

int stop_signal() { return received; }

}  // namespace p3d::run
