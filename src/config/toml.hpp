// SPDX-License-Identifier: Apache-2.0
#pragma once
// The TOML library under the one name it has in each of its versions, and how p3d writes TOML itself.

#if __has_include(<toml++/toml.hpp>)
#include <toml++/toml.hpp>
#else
#include <toml++/toml.h>
#endif

#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// A text as a basic string with its quotes; control characters are escaped.
std::string toml_string(std::string_view text);
/// Texts as a list of basic strings.
std::string toml_list(std::vector<std::string> const& texts);
/// A float in the shortest digits that read back as the same double, never mistaken for an integer.
std::string toml_float(double value);

}  // namespace p3d::config
