// SPDX-License-Identifier: Apache-2.0
// The watch over calls that block inside a library. One thread of the process looks at all calls that are under way, at
// least once a second, and adds up how long each has lasted while the process ran; time in which the process was
// stopped does not count. A call that outlasts its budget ends the process. Example: BlockingCall("MPI_Comm_dup", "tp")
// with a budget of 600 s lives as long as the call; after 600 s the watch prints rank, call and communicator, and ends
// the process.

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "internal.hpp"
#include "watchdog.hpp"

namespace p3d::comm {

using Clock = std::chrono::steady_clock;

/// The watch of the process. Its thread sleeps while no call is under way; it makes no MPI calls, which belong to the
/// main thread.
struct BlockingWatch {
  std::mutex mutex;
  std::condition_variable changed;
  BlockingCall* calls = nullptr;  ///< all calls under way, a linked list
  Clock::time_point last_look = Clock::now();
  Clock::time_point wakes = Clock::time_point::max();  ///< when the thread looks next
  bool runs = false;                                   ///< the thread has been started

  static BlockingWatch& get() {
    static auto& watch = *new BlockingWatch;  // never destroyed: its thread is never joined
    return watch;
  }

  void start();
  void add(BlockingCall& call);
  void remove(BlockingCall& call);
  void begin_again(BlockingCall& call, char const* name);
  void watch();
  double look(double most);
  void wake_for(BlockingCall const& call);
};

void leave_without_mpi(int exit_code) {
  if (char const* const channel = std::getenv("PMI_FD")) {
    auto const words = fmt::format("cmd=abort exitcode={}\n", exit_code);
    if (write(std::atoi(channel), words.data(), words.size()) > 0) sleep(1);
  }
  std::_Exit(exit_code);
}

namespace {

Clock::duration in_clock(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

constexpr double longest_pause_s = 1.0;  // between two looks
constexpr double shortest_pause_s = 0.01;
constexpr std::size_t stack = std::size_t{512} << 10;
// Seconds after which an alarm ends the process.
constexpr unsigned seconds_to_leave = 10;
// Ranks reach the ends of their budgets at about the same time; all may print.
constexpr unsigned seconds_for_the_others = 1;

/// The states in /proc of this node's ranks, as a table; empty unless this is the first rank of the node that can
/// speak.
std::string node_table() {
  auto const all = node_processes();
  auto const first = std::find_if(all.begin(), all.end(), [](auto const& p) { return !p.stopped && !p.ended; });
  if (first == all.end() || first->process != getpid()) return {};
  std::string out = "\nProcesses of this node:";
  for (auto const& process : all) {
    out += process.ended ? fmt::format("\na rank that has ended: process {}", process.process)
                         : fmt::format("\nrank {}: {}", process.rank, describe(process));
  }
  return out;
}

constexpr int timeout_code = static_cast<int>(base::ExitCode::timeout);

/// Tells the launcher, then ends the process. MPI belongs to the main thread, but that one will not call it again; if
/// the abort hangs or fails, the alarm ends the process.
[[noreturn]] void end_all(std::string_view call) {
  if (detail::mpi_runs() && call != "MPI_Finalize") MPI_Abort(MPI_COMM_WORLD, timeout_code);
  leave_without_mpi(timeout_code);  // the only way inside MPI_Init and MPI_Finalize
}

/// Reports an overdue MPI call, which waits most likely because another rank does not come, and ends the process.
[[noreturn]] void end_mpi_call(OverdueCall const& overdue) {
  // The output may hang, on a lock that a stuck thread holds: then the alarm ends the process.
  detail::leave_within(seconds_to_leave, timeout_code);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  int const rank = base::log_num_ranks() > 1 ? base::log_rank() : launch().rank;
  base::error_here(
      fmt::format("p3d: rank {} waited {:g} s in {} of '{}' ({}), longer than it may "
                  "(comm.timeout_s){}\nEnding all ranks.",
                  rank, overdue.budget_s, overdue.call, overdue.subject, detail::activity(), node_table()));
  std::fflush(stdout);
  sleep(seconds_for_the_others);
  end_all(overdue.call);
}

}  // namespace

void BlockingWatch::start() {
  base::SignalsBlocked const blocked;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  auto* const body = +[](void* watch) -> void* {
    static_cast<BlockingWatch*>(watch)->watch();
    return nullptr;
  };
  runs = pthread_create(&thread, &attributes, body, this) == 0;
  pthread_attr_destroy(&attributes);
  if (runs) return;
  throw base::Error({.expected = "a thread that watches over calls that block",
                     .found = "the system starts no thread",
                     .where = fmt::format("rank {}", base::log_rank()),
                     .fix = "raise the limits on processes and memory: ulimit -u, ulimit -v"});
}

void BlockingWatch::wake_for(BlockingCall const& call) {
  if (call.begin_ + in_clock(std::min(call.budget_s_, longest_pause_s)) < wakes) changed.notify_one();
}

void BlockingWatch::add(BlockingCall& call) {
  std::lock_guard const lock(mutex);
  if (!runs) start();
  call.next_ = std::exchange(calls, &call);
  wake_for(call);
}

void BlockingWatch::remove(BlockingCall& call) {
  std::lock_guard const lock(mutex);
  auto** link = &calls;
  while (*link != &call) link = &(*link)->next_;
  *link = call.next_;
}

void BlockingWatch::begin_again(BlockingCall& call, char const* name) {
  std::lock_guard const lock(mutex);
  call.call_ = name;
  call.waited_s_ = 0.0;
  call.begin_ = Clock::now();
  wake_for(call);
}

/// Adds the time since the last look to all calls, but at most `most` seconds: more is time in which this process was
/// stopped. Ends the process when a call is overdue. Returns the seconds until the next look.
double BlockingWatch::look(double most) {
  auto const now = Clock::now();
  double pause = longest_pause_s;
  for (auto* call = calls; call != nullptr; call = call->next_) {
    double const passed = std::chrono::duration<double>(now - std::max(last_look, call->begin_)).count();
    call->waited_s_ += std::clamp(passed, 0.0, most);
    if (call->waited_s_ >= call->budget_s_) {
      OverdueCall const overdue{call->call_, call->subject_, call->waited_s_, call->budget_s_};
      auto const end = call->end_;
      mutex.unlock();
      end(overdue);
      std::abort();
    }
    pause = std::min(pause, call->budget_s_ - call->waited_s_);
  }
  last_look = now;
  return std::max(pause, shortest_pause_s);
}

void BlockingWatch::watch() {
  std::unique_lock lock(mutex);
  for (double pause = longest_pause_s;;) {
    pause = look(2.0 * pause);
    if (calls == nullptr) {
      wakes = Clock::time_point::max();
      changed.wait(lock);
    } else {
      wakes = last_look + in_clock(pause);
      changed.wait_until(lock, wakes);
    }
  }
}

BlockingCall::BlockingCall(char const* call, std::string subject, double budget_s, EndOverdue end)
    : call_(call),
      subject_(std::move(subject)),
      budget_s_(budget_s > 0.0 ? budget_s : wait_policy().timeout_s),
      end_(end != nullptr ? end : end_mpi_call),
      begin_(Clock::now()) {
  BlockingWatch::get().add(*this);
}

BlockingCall::~BlockingCall() { BlockingWatch::get().remove(*this); }

void BlockingCall::next(char const* call) { BlockingWatch::get().begin_again(*this, call); }

}  // namespace p3d::comm
