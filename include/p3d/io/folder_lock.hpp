// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lock on a folder: one run at a time writes there, also where a run was killed and could not tidy up.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace p3d::io {

/// A lock file with host, process, job and a heartbeat (its modification time), locked by fcntl where the file system
/// can. A lock that its owner left behind is told from a live one by these rules:
///   the system holds the lock                                        live
///   this host, and the process is gone                               stale
///   another host, an earlier start of the same Slurm job (requeued)  stale
///   another host                                                     live while its heart beats; stale when it has not
///                                                                    beaten for 8 of its periods (2 minutes)
class FolderLock {
public:
  explicit FolderLock(std::string path, double heartbeat_s = 15.0);
  /// Releases the lock and deletes its file.
  ~FolderLock();
  FolderLock(FolderLock const&) = delete;
  FolderLock& operator=(FolderLock const&) = delete;

  /// Tries to take the lock. True: it is taken. False: the heart of the other owner must be watched for some time: try
  /// again soon, for 2 to 3 minutes at most. Throws base::Error (bad_input) when another run has it; the error says
  /// which, and which file to delete if that is wrong.
  bool try_take();
  /// One line about the dead owner whose lock was taken over; empty when there was none. Valid after try_take() was
  /// true.
  std::string const& taken_over() const { return taken_over_; }
  std::string const& path() const { return path_; }

private:
  /// Writes the text of this owner into the file and starts the heart. The file is open in fd_.
  void take();
  /// The heart, in its own thread: stamps the file every heartbeat_s_ seconds until ends_.
  void beat();

  std::string path_;
  double heartbeat_s_;
  int fd_ = -1;
  std::string text_;  ///< content of the lock file once it is taken
  std::string taken_over_;
  std::chrono::steady_clock::time_point first_try_;
  bool tried_ = false;
  std::int64_t other_beat_ns_ = 0;  ///< time stamp (ns) of the other owner's lock when it was first seen; 0: not seen
  std::mutex mutex_;
  std::condition_variable end_;  ///< wakes the heart when ends_ is set
  bool ends_ = false;            ///< the heart is to end
  std::thread heart_;
};

}  // namespace p3d::io
