// SPDX-License-Identifier: Apache-2.0
// A scan of a TOML text for brackets and dots. It knows strings and comments, whose brackets do not count, and nothing
// else of TOML: a text that is wrong in other ways is left to the parser.
#include "config/nesting.hpp"

#include <algorithm>
#include <cstddef>

namespace p3d::config {

namespace {

/// The place behind the string that begins at `at`; counts the lines in it. An unfinished string of one line gives
/// `text.size()`: the parser stops at that line with an error.
std::size_t past_string(std::string_view text, std::size_t at, int& line) {
  char const quote = text[at];
  bool const escapes = quote == '"';
  auto const run_from = [&](std::size_t i) {
    std::size_t n = 0;
    while (n < 5 && i + n < text.size() && text[i + n] == quote) ++n;
    return n;
  };
  auto const opening = run_from(at);
  if (opening == 2) return at + 2;  // an empty string
  bool const many_lines = opening >= 3;
  for (std::size_t i = at + (many_lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\n') {
      if (!many_lines) return text.size();
      ++line;
    } else if (escapes && text[i] == '\\') {
      if (i + 1 < text.size() && text[i + 1] == '\n') ++line;
      ++i;
    } else if (text[i] == quote) {
      if (!many_lines) return i + 1;
      if (auto const n = run_from(i); n >= 3) return i + n;  // up to two quotes may stand before the closing three
    }
  }
  return text.size();
}

}  // namespace

int too_deep_at_line(std::string_view text) {
  int line = 1, brackets = 0, dots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const c = text[i];
    if (c == '"' || c == '\'') {
      i = past_string(text, i, line) - 1;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '[' || c == '{') {
      ++brackets;
      dots = 0;
    } else if (c == ']' || c == '}') {
      brackets = std::max(0, brackets - 1);
      dots = 0;
    } else if (c == '.') {
      ++dots;
    } else if (c == '\n' || c == '=' || c == ',') {
      dots = 0;
      if (c == '\n') ++line;
    }
    if (brackets + dots > deepest_nesting) return line;
  }
  return 0;
}

}  // namespace p3d::config
