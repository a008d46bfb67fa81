// SPDX-License-Identifier: Apache-2.0
#pragma once
// From the paths of an input to files.

#include <p3d/data/token_source.hpp>

#include <string>
#include <vector>

namespace p3d::data {

/// As find_text_files; of folders only files that end in `suffix`. `what`: the kind of file, and `key`: of the input,
/// for messages.
std::vector<TextFile> find_files(std::vector<std::string> const& paths, std::string const& suffix, char const* what,
                                 std::string const& key);

/// The pairs PREFIX.bin, PREFIX.idx behind paths, each a prefix, one of the two files, or a folder of pairs.
std::vector<std::string> find_prefixes(std::vector<std::string> const& paths, std::string const& key);

}  // namespace p3d::data
