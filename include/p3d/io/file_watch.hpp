// SPDX-License-Identifier: Apache-2.0
#pragma once
// File operations that never return (a frozen file system, a dead server) are reported and end the run; those that are
// only slow let other ranks wait.

#include <p3d/comm/wait.hpp>

#include <functional>
#include <string>

namespace p3d::io {

/// Seconds that one file operation may take (run.file_timeout_s). Set once per process; before that 1800.
void set_file_timeout(double seconds);
double file_timeout();

/// Marks this thread as being inside a file operation; every open, read, write, fsync, rename and HDF5 call of this
/// room stands inside one. When one takes longer than file_timeout(), less a second (or a quarter, if that is shorter),
/// the process says which one hangs, on which file, and ends with ExitCode::timeout.
class FileOperation {
public:
  FileOperation(char const* name, std::string const& path);
  ~FileOperation();
  FileOperation(FileOperation const&) = delete;
  FileOperation& operator=(FileOperation const&) = delete;
  /// The next operation on the same file, with a budget of its own.
  void next(char const* name);

private:
  std::string path_;
  comm::BlockingCall call_;
};

/// Runs `work`, which makes file operations and no MPI call, in a thread of its own, and returns when it is done, or
/// throws what it throws. Meanwhile this thread, which calls MPI, answers other ranks: their waits for this one may
/// last longer than comm.timeout_s while the disk is at work (comm::progress_at). A single rank just runs it.
void apart(std::function<void()> const& work);

}  // namespace p3d::io
