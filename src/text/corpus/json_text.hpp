// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads one text out of a line of JSON.

#include <string>
#include <string_view>

namespace p3d::text {

/// Puts the string under `key` of the object in `line` into `text`. Returns "", or the error in words: "no key
/// \"text\"".
std::string read_json_text(std::string_view line, std::string const& key, std::string& text);

}  // namespace p3d::text
