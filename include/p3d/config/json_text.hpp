// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON that others wrote, read strictly.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace p3d::config {

/// The value of a JSON text (RFC 8259, UTF-8). Throws base::Error (bad_input) with `where` (a path) and the byte at
/// which it ends to be JSON, for a key that an object holds twice, and for values nested deeper than 32.
nlohmann::json parse_json(std::string_view text, std::string const& where);

/// `the string "abc"`, `the number 3`, `a list`: a value as messages name it, cut after 80 characters.
std::string describe(nlohmann::json const& value);

}  // namespace p3d::config
