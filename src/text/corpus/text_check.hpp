// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells whether a file is text: pictures, archives and programs lie in folders of text, and would become tokens as it
// does.

#include "text/corpus/byte_stream.hpp"

#include <string>
#include <string_view>

namespace p3d::text {

/// The reason why the first bytes of a file are not text, or "" if they may be: a NUL byte (UTF-16 and UTF-32 have them
/// too), or control characters in bytes that are not UTF-8. Text in another 8-bit encoding is text.
std::string why_not_text(std::string_view head);
/// The reason why the first 8 KiB of a file are not text (why_not_text), or "". They are decompressed first as
/// `compression` says.
std::string why_not_text_file(std::string const& path, Compression compression);

}  // namespace p3d::text
