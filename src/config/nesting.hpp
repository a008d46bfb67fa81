// SPDX-License-Identifier: Apache-2.0
#pragma once
// How deep a TOML text nests, found before it is parsed: the parser (and what it builds) goes down one call per level,
// and a text of a million brackets would overflow the stack.

#include <string_view>

namespace p3d::config {

/// The deepest nesting that is read: far beyond any input (a list in a section: 2), far below what a stack holds.
inline constexpr int deepest_nesting = 32;

/// The line (from 1) where brackets, or the dots of a key, first nest deeper than `deepest_nesting`; 0: nowhere.
int too_deep_at_line(std::string_view toml);

}  // namespace p3d::config
