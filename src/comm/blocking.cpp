// SPDX-License-Identifier: Apache-2.0
// The watch over calls that block inside a library.

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
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
#include <string_view>
#include <utility>

#include "internal.hpp"
#include "watchdog.hpp"

namespace p3d::comm {

using Clock = std::chrono::steady_clock;

/// One for the process. Its thread sleeps until the first of the deadlines; it calls no MPI, which belongs to the main
/// thread.
struct BlockingWatch {
  std::mutex mutex;
  std::condition_variable changed;
  BlockingCall* calls = nullptr;
  Clock::time_point wakes = Clock::time_point::max();
  bool runs = false;

  static BlockingWatch& get() {
    static auto& watch = *new BlockingWatch;  // never destroyed: its thread is never joined
    return watch;
  }
  static Clock::time_point deadline(BlockingCall const& call) {
    return call.begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(call.budget_s_));
  }

  void start();
  void add(BlockingCall& call);
  void remove(BlockingCall& call);
  void watch();
  [[noreturn]] static void outlasted(char const* call, std::string const& subject, double budget_s);
};

namespace {

constexpr double longest_budget_s = 1e8;  // a deadline of a clock in nanoseconds
constexpr std::size_t stack = std::size_t{512} << 10;
constexpr unsigned seconds_to_leave = 10;
constexpr unsigned seconds_for_the_others = 1;  // ranks come to the end of their budgets at about the same time

/// What /proc tells of the ranks of this node; empty unless this is the first of them that can speak.
std::string node_table() {
  auto const all = node_processes();
  auto const first = std::find_if(all.begin(), all.end(), [](auto const& p) { return !p.stopped && !p.ended; });
  if (first == all.end() || first->process != getpid()) return {};
  std::string out = "\nProcesses of this node:";
  for (auto const& process : all) {
    out += process.ended ? fmt::format("\na rank that has ended: process {}", process.process)
                         : fmt::format("\nrank {}: process {} {}", process.rank, process.process,
                                       process.stopped ? "is stopped" : "runs");
  }
  return out;
}

constexpr int timeout_code = static_cast<int>(base::ExitCode::timeout);

void give_up(int) { _exit(timeout_code); }

/// Tells the launcher, then leaves. MPI belongs to the main thread, but that will not call it again; and should the
/// abort hang or fail, the alarm is set.
[[noreturn]] void end_all(std::string_view call) {
  if (detail::mpi_runs() && call != "MPI_Finalize") MPI_Abort(MPI_COMM_WORLD, timeout_code);
  // Inside MPI_Init and MPI_Finalize: in the words of MPICH's launcher, which else returns the signal that it sends to
  // a stopped rank.
  if (char const* const channel = std::getenv("PMI_FD")) {
    auto const words = fmt::format("cmd=abort exitcode={}\n", timeout_code);
    if (write(std::atoi(channel), words.data(), words.size()) > 0) sleep(1);
  }
  _exit(timeout_code);
}

}  // namespace

void BlockingWatch::start() {
  // Signals are for the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
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
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (runs) return;
  throw base::Error({.expected = "a thread that watches over calls that block",
                     .found = "the system starts no thread",
                     .where = fmt::format("rank {}", base::log_rank()),
                     .fix = "raise the limits on processes and memory: ulimit -u, ulimit -v"});
}

void BlockingWatch::add(BlockingCall& call) {
  std::lock_guard const lock(mutex);
  if (!runs) start();
  call.next_ = std::exchange(calls, &call);
  if (deadline(call) < wakes) changed.notify_one();
}

void BlockingWatch::remove(BlockingCall& call) {
  std::lock_guard const lock(mutex);
  auto** link = &calls;
  while (*link != &call) link = &(*link)->next_;
  *link = call.next_;
}

void BlockingWatch::watch() {
  std::unique_lock lock(mutex);
  for (;;) {
    wakes = Clock::time_point::max();
    for (auto const* call = calls; call != nullptr; call = call->next_) {
      if (deadline(*call) <= Clock::now()) {
        auto const name = call->call_;
        auto const subject = call->subject_;
        auto const budget = call->budget_s_;
        lock.unlock();
        outlasted(name, subject, budget);
      }
      wakes = std::min(wakes, deadline(*call));
    }
    if (wakes == Clock::time_point::max()) {
      changed.wait(lock);
    } else {
      changed.wait_until(lock, wakes);
    }
  }
}

void BlockingWatch::outlasted(char const* call, std::string const& subject, double budget_s) {
  // What follows may hang, on a lock that a stuck thread holds: the alarm ends the process then.
  std::signal(SIGALRM, give_up);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  alarm(seconds_to_leave);
  int const rank = base::log_num_ranks() > 1 ? base::log_rank() : launch().rank;
  base::error_here(
      fmt::format("p3d: rank {} waited {:g} s in {} of '{}' ({}), longer than it may "
                  "(comm.timeout_s){}\nEnding all ranks.",
                  rank, budget_s, call, subject, detail::activity(), node_table()));
  std::fflush(stdout);
  sleep(seconds_for_the_others);
  end_all(call);
}

BlockingCall::BlockingCall(char const* call, std::string subject, double budget_s)
    : call_(call),
      subject_(std::move(subject)),
      budget_s_(std::min(budget_s > 0.0 ? budget_s : wait_policy().timeout_s, longest_budget_s)),
      begin_(Clock::now()) {
  BlockingWatch::get().add(*this);
}

BlockingCall::~BlockingCall() { BlockingWatch::get().remove(*this); }

}  // namespace p3d::comm
