// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files behind the paths of an input: a file stands for itself, a folder for the files below it.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::text {

/// One file of a text source.
struct TextFile {
  std::string path;
  std::int64_t bytes = 0;
};

/// Lists the files behind the given paths, in reading order: each path in turn; a folder stands for the regular files
/// below it, recursively, sorted by path (bytewise). Symbolic links are followed; a file that was met before under
/// another name is left out. Throws base::Error when a path does not exist or no file is found.
std::vector<TextFile> find_text_files(std::vector<std::string> const& paths);
/// The number of bytes of all files, which is the number of their tokens.
std::int64_t total_bytes(std::vector<TextFile> const& files);

/// Lists files as find_text_files does, and of folders only files that end in `suffix`. Messages name the kind of file
/// (`what`) and the key of the input.
std::vector<TextFile> find_files(std::vector<std::string> const& paths, std::string const& suffix, char const* what,
                                 std::string const& key);

/// Lists the pairs PREFIX.bin, PREFIX.idx behind paths, each a prefix, one of the two files, or a folder of pairs.
std::vector<std::string> find_prefixes(std::vector<std::string> const& paths, std::string const& key);

}  // namespace p3d::text
