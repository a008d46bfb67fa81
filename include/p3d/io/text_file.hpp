// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing of whole text files; a reader never sees half of one.

#include <string>
#include <string_view>

namespace p3d::io {

/// Makes a folder and its parents; an existing folder is no error. Throws base::Error with the path and the system's
/// reason.
void make_folder(std::string const& path);

/// Writes `text` to a temporary file in the same folder, flushes it to disk and renames it to `path`: after a crash
/// `path` holds either the old or the new text. Throws base::Error with the path and the system's reason; `path` is
/// then untouched.
void write_text_atomically(std::string const& path, std::string_view text);

/// Reads the whole file. Throws base::Error when it cannot be read.
std::string read_text(std::string const& path);

}  // namespace p3d::io
