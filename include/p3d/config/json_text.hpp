// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON that other programs wrote, read strictly: a file that is cut off or was edited by mistake is an error, not a
// guess.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace p3d::config {

/// The value of a JSON text (RFC 8259, UTF-8). Throws base::Error (bad_input) for another text, with `where` (a path)
/// and the byte at which it ends to be JSON, for a key that an object holds twice, and for values nested deeper than
/// 32.
nlohmann::json parse_json(std::string_view text, std::string const& where);

/// A value as messages name it, cut after 80 characters: `the string "abc"`, `the number 3`, `a list`.
std::string describe(nlohmann::json const& value);

}  // namespace p3d::config
