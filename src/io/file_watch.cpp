// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/file_watch.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/timer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include <pthread.h>

namespace p3d::io {

/// One for each process, with a thread that looks at the operations under way. Never destroyed: threads may write until
/// the process ends.
struct FileWatch {
  std::mutex mutex;
  double timeout_s = 600.0;
  FileOperation* first = nullptr;

  FileWatch() {
    // A file that reaches the limit of its size is an error of that write, told as such, and no reason to die.
    std::signal(SIGXFSZ, SIG_IGN);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);  // signals are for the thread that trains
    try {
      std::thread([this] { look(); }).detach();
    } catch (std::system_error const&) {
      // No more threads for this user: the other ranks still end by their own timeout.
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  static FileWatch& get() {
    static auto* const watch = new FileWatch;
    return *watch;
  }

  void add(FileOperation& op) {
    std::lock_guard const lock(mutex);
    op.after_ = first;
    if (first) first->before_ = &op;
    first = &op;
  }
  void remove(FileOperation& op) {
    std::lock_guard const lock(mutex);
    (op.before_ ? op.before_->after_ : first) = op.after_;
    if (op.after_) op.after_->before_ = op.before_;
  }
  void rename(FileOperation& op, char const* name) {
    std::lock_guard const lock(mutex);
    op.name_ = name;
    op.seconds_ = 0.0;
  }

  void look() {
    base::Stopwatch watch;
    double last = 0.0;
    for (double pause = 0.02;;) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      double const now = watch.seconds();
      std::unique_lock lock(mutex);
      // A process that was stopped itself has not waited for the disk: no look counts more than two pauses.
      double const passed = std::min(now - last, 2.0 * pause);
      last = now;
      pause = std::clamp(timeout_s / 50.0, 0.02, 1.0);
      // A little before the ranks that wait for this one report that it does not answer.
      double const limit = timeout_s - std::min(1.0, 0.25 * timeout_s);
      for (auto* op = first; op; op = op->after_) {
        if ((op->seconds_ += passed) > limit) give_up(*op);
      }
    }
  }

  /// Other threads hang in the kernel or wait for MPI, which this thread may not call: it ends the process, and the
  /// launcher the others.
  [[noreturn]] void give_up(FileOperation const& op) {
    base::error_here(
        "p3d stops: the disk does not answer\n" +
        base::format({.expected = fmt::format("a file operation that ends within comm.timeout_s = {:g} s", timeout_s),
                      .found = fmt::format("{} that has not returned for {:.1f} s", op.name_, op.seconds_),
                      .where = *op.path_,
                      .fix = "look at the file system and its server (df, dmesg); when it answers again, "
                             "start the run again"}) +
        "\nEnding all ranks.");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // launchers drop what they have not read yet
    std::_Exit(static_cast<int>(base::ExitCode::timeout));
  }
};

void set_file_timeout(double seconds) {
  auto& watch = FileWatch::get();
  std::lock_guard const lock(watch.mutex);
  watch.timeout_s = seconds;
}

FileOperation::FileOperation(char const* name, std::string const& path) : name_(name), path_(&path) {
  FileWatch::get().add(*this);
}
FileOperation::~FileOperation() { FileWatch::get().remove(*this); }
void FileOperation::next(char const* name) { FileWatch::get().rename(*this, name); }

}  // namespace p3d::io
