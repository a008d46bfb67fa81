// SPDX-License-Identifier: Apache-2.0
#pragma once
// A watch on file operations. One that never returns (a frozen file system, a dead server) is reported and ends the
// run; while one is only slow, the rank that waits for it tells the others so, and they wait longer.

#include <p3d/comm/wait.hpp>

#include <functional>
#include <string>

namespace p3d::io {

/// Sets how many seconds one file operation may take (run.file_timeout_s). It is set once per process; before that the
/// limit is 1800 s.
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
  /// Begins the next operation on the same file, with a time budget of its own.
  void next(char const* name);

private:
  std::string path_;
  comm::BlockingCall call_;
};

/// Runs `work`, which makes file operations and no MPI call, in a thread of its own. Returns when it is done, or throws
/// what it throws. Meanwhile the calling thread, which may call MPI, answers other ranks: their waits for this one may
/// last longer than comm.timeout_s while the disk is at work (comm::progress_at). A single rank just runs `work`.
void apart(std::function<void()> const& work);

}  // namespace p3d::io
