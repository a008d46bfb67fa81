// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that a user names, read as a whole.

#include <cstdint>
#include <string>

namespace p3d::base {

/// The bytes of a regular file of at most `limit` bytes. Throws Error (bad_input) with `expected`, `where` and the path
/// for anything else: a folder, a pipe, a device (which may have no end, or wait for ever), a larger file.
std::string read_text_file(std::string const& path, std::string const& expected, std::string const& where,
                           std::int64_t limit);

}  // namespace p3d::base
