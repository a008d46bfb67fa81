// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a file is text: pictures, archives and programs lie in folders of text, and would become tokens as it does.

#include "data/corpus/byte_stream.hpp"

#include <string>
#include <string_view>

namespace p3d::data {

/// Why the first bytes of a file are no text, or "" if they may be: a NUL byte (UTF-16 and UTF-32 have them too), or
/// control characters in what is not UTF-8. Text in another 8-bit encoding is text.
std::string why_not_text(std::string_view head);
/// Why the first 8 KiB of a file are no text (why_not_text), or "". They are decompressed first as `compression` says.
std::string why_not_text_file(std::string const& path, Compression compression);

}  // namespace p3d::data
