// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors of file operations that the operating system refused.

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace p3d::io {

/// The errno of the call that has just failed, as an error code; EIO where errno is 0.
inline std::error_code last_error() { return {errno != 0 ? errno : EIO, std::generic_category()}; }

/// The error for a file that is not as `expected`, with the system's reason `why`.
inline base::Error failure(std::string const& expected, std::string const& path, std::error_code why) {
  return base::Error({.expected = expected,
                      .found = why.message(),
                      .where = path,
                      .fix = "check the path, its permissions and the free space, or choose another folder"});
}

}  // namespace p3d::io
