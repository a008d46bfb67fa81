// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run at a time in a folder, also where a run was killed and could not tidy up.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace p3d::io {

/// A lock file with host, process, job and a heartbeat (its modification time), locked by fcntl where the file system
/// can. A lock that its owner left behind is told from a live one:
///   the system holds the lock                                        live
///   this host, and the process is gone                               stale
///   another host, an earlier start of the same Slurm job (requeued)  stale
///   another host                                 live if it beats; stale when it has not for 8 of its beats (2
///   minutes)
class FolderLock {
public:
  explicit FolderLock(std::string path, double heartbeat_s = 15.0);
  /// Gives the lock back and deletes the file.
  ~FolderLock();
  FolderLock(FolderLock const&) = delete;
  FolderLock& operator=(FolderLock const&) = delete;

  /// True: taken. False: the other's heart has to be listened to: try again soon, for 2 to 3 minutes at most. Throws
  /// base::Error (bad_input) that says who has it and which file to delete if that is wrong.
  bool try_take();
  /// After a take: a line about a dead owner whose lock this was; empty when there was none.
  std::string const& taken_over() const { return taken_over_; }
  std::string const& path() const { return path_; }

private:
  void take();
  void beat();

  std::string path_;
  double heartbeat_s_;
  int fd_ = -1;
  std::string text_;  ///< what the file says once it is taken
  std::string taken_over_;
  std::chrono::steady_clock::time_point first_try_;
  bool tried_ = false;
  std::int64_t other_beat_ns_ = 0;  ///< of the other's heart, as first seen
  std::mutex mutex_;
  std::condition_variable end_;
  bool ends_ = false;
  std::thread heart_;
};

}  // namespace p3d::io
