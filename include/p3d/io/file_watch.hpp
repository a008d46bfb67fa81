// SPDX-License-Identifier: Apache-2.0
#pragma once
// File operations that never return (a frozen file system, a dead server) are reported and end the run.

#include <p3d/comm/wait.hpp>

#include <string>

namespace p3d::io {

/// Marks this thread as being inside a file operation; every open, read, write, fsync, rename and HDF5 call of this
/// room stands inside one. When one takes longer than comm::wait_policy().timeout_s, less a second (or a quarter, if
/// that is shorter), the process says which one hangs, on which file, and ends with ExitCode::timeout; the ranks that
/// wait for this one then end by their own timeout, a little later.
class FileOperation {
public:
  FileOperation(char const* name, std::string const& path);
  /// The next operation on the same file, with a budget of its own.
  void next(char const* name) { call_.next(name); }

private:
  comm::BlockingCall call_;
};

}  // namespace p3d::io
