// SPDX-License-Identifier: Apache-2.0
#pragma once
// Help for paths of files that are not there.

#include <optional>
#include <string>

namespace p3d::config {

/// " (did you mean 'x'?)" when the folder of a missing path holds a similar name, else "".
std::string similar_file(std::string const& path);

/// The thing at a path where a file should be, and what to do about it.
struct NoFile {
  std::string found;  ///< "no such file", "a folder", "no regular file"
  bool missing = false;
  std::string fix;
};
/// Nothing where the path is that of a regular file.
std::optional<NoFile> no_file(std::string const& path);

}  // namespace p3d::config
