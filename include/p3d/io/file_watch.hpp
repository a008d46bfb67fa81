// SPDX-License-Identifier: Apache-2.0
#pragma once
// File operations that never return (a frozen file system, a dead server) are reported and end the run.

#include <string>

namespace p3d::io {

/// How long one file operation of p3d may take before the process says which one hangs and ends with ExitCode::timeout;
/// 600 s until this is called. The ranks that wait for this one then end by their own timeout, a little later.
void set_file_timeout(double seconds);

/// Marks this thread as being inside a file operation. Every open, read, write, fsync, rename and HDF5 call of this
/// room stands inside one. The texts must live as long as the object. Costs two locks of a mutex.
class FileOperation {
public:
  FileOperation(char const* name, std::string const& path);
  ~FileOperation();
  FileOperation(FileOperation const&) = delete;
  FileOperation& operator=(FileOperation const&) = delete;
  /// The next operation on the same file.
  void next(char const* name);

private:
  friend struct FileWatch;
  char const* name_;
  std::string const* path_;
  double seconds_ = 0.0;  ///< as the watch has counted them
  FileOperation* before_ = nullptr;
  FileOperation* after_ = nullptr;
};

}  // namespace p3d::io
