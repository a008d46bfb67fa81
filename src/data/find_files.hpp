// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the files behind the paths of an input.

#include <p3d/data/token_source.hpp>

#include <string>
#include <vector>

namespace p3d::data {

/// Lists files as find_text_files does, but in folders only files that end in `suffix`. `what` (the kind of file) and
/// `key` (of the input) are for messages.
std::vector<TextFile> find_files(std::vector<std::string> const& paths, std::string const& suffix, char const* what,
                                 std::string const& key);

/// The prefixes of the pairs PREFIX.bin, PREFIX.idx behind paths, each of which is a prefix, one of the two files, or a
/// folder of pairs.
std::vector<std::string> find_prefixes(std::vector<std::string> const& paths, std::string const& key);

}  // namespace p3d::data
