// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/file_watch.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/communicator.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace p3d::io {

namespace {

/// Seconds that one file operation may take.
double the_timeout = 1800.0;

/// The state that apart() shares with the thread that it began.
struct Apart {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int depth = 0;            ///< operations that have begun and not ended, one within the other
  std::string operation;    ///< the last operation that began: "fsync of FILE"
  base::Stopwatch changes;  ///< time since an operation began or ended

  void begins(char const* name, std::string const& path) {
    std::lock_guard const lock(mutex);
    ++depth;
    is_at(name, path);
  }
  void goes_on(char const* name, std::string const& path) {
    std::lock_guard const lock(mutex);
    is_at(name, path);
  }
  void ends() {
    std::lock_guard const lock(mutex);
    --depth;
    changes.reset();
  }

private:
  void is_at(char const* name, std::string const& path) {
    operation = fmt::format("{} of {}", name, path);
    changes.reset();
  }
};
/// The state of the thread's apart(); null in threads that apart() did not begin.
thread_local Apart* the_apart = nullptr;

/// Time budget of an operation. It is less than file_timeout(), so that the message is out when that has passed.
double budget() { return the_timeout - std::min(1.0, 0.25 * the_timeout); }

/// Ends the process without MPI after a message; the launcher ends the other ranks. The other threads of this process
/// hang in the kernel or wait for MPI, so an orderly end is not possible.
void end(comm::OverdueCall const& overdue) {
  base::error_here(
      "p3d stops: the disk does not answer\n" +
      base::format(
          {.expected = fmt::format("a file operation that ends within run.file_timeout_s = {:g} s", the_timeout),
           .found = fmt::format("{} that has not returned for {:.1f} s", overdue.call, overdue.waited_s),
           .where = overdue.subject,
           .fix = "look at the file system and its server (df, dmesg); when it answers again, "
                  "start the run again"}) +
      "\nEnding all ranks.");
  base::let_last_message_out();
  comm::leave_without_mpi(static_cast<int>(base::ExitCode::timeout));
}

}  // namespace

void set_file_timeout(double seconds) {
  P3D_REQUIRE(seconds > 0.0, "a file operation has a positive time budget");
  the_timeout = seconds;
}
double file_timeout() { return the_timeout; }

FileOperation::FileOperation(char const* name, std::string const& path)
    : path_(path), call_(name, path, budget(), end) {
  // A file that reaches the limit of its size is an error of that write, reported as such, and must not end the
  // process.
  static auto const ignored = std::signal(SIGXFSZ, SIG_IGN);
  (void)ignored;
  if (the_apart != nullptr) the_apart->begins(name, path_);
}

FileOperation::~FileOperation() {
  if (the_apart != nullptr) the_apart->ends();
}

void FileOperation::next(char const* name) {
  call_.next(name);
  if (the_apart != nullptr) the_apart->goes_on(name, path_);
}

void apart(std::function<void()> const& work) {
  if (base::log_num_ranks() == 1 || the_apart != nullptr) return work();
  Apart state;
  std::exception_ptr thrown;
  std::thread thread;
  try {
    base::SignalsBlocked const blocked;
    thread = std::thread([&] {
      the_apart = &state;
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
      std::lock_guard const lock(state.mutex);
      state.done = true;
      state.changed.notify_all();
    });
    // No more threads for this user: the other ranks wait as for any rank that computes.
  } catch (std::system_error const&) {
    return work();
  }
  std::unique_lock lock(state.mutex);
  while (!state.done) {
    state.changed.wait_for(lock, std::chrono::milliseconds(1), [&] { return state.done; });
    if (state.done) break;
    // Between two operations the work computes. When that takes longer than comm.timeout_s, this rank is as silent as
    // any rank that computes, so that an endless loop is found.
    bool const works = state.depth > 0 || state.changes.seconds() < comm::wait_policy().timeout_s;
    auto const operation = state.operation.empty() ? "file operations" : state.operation;
    lock.unlock();
    if (works)
      comm::progress_at(operation);
    else
      comm::progress();
    lock.lock();
  }
  lock.unlock();
  thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace p3d::io
