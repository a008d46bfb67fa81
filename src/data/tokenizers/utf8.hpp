// SPDX-License-Identifier: Apache-2.0
#pragma once
// UTF-8, and bytes that are none. What is not UTF-8 is read as other libraries read it: each maximal part of a
// character stands for one U+FFFD (Unicode, section 3.9, "U+FFFD Substitution of Maximal Subparts").

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

struct Utf8Character {
  char32_t code = 0xFFFD;
  std::size_t bytes = 1;
  bool valid = false;
};
/// The character at text[at], which must exist.
Utf8Character utf8_at(std::string_view text, std::size_t at);
/// The character that ends at text[end - 1]; of valid text, end > 0.
Utf8Character utf8_before(std::string_view text, std::size_t end);
/// Where the first byte is that is not UTF-8, at or after `from`; npos: nowhere.
std::size_t first_invalid(std::string_view text, std::size_t from = 0);
void append_utf8(char32_t code, std::string& out);

/// A U+FFFD in a text that stands for bytes that are no UTF-8.
struct Replaced {
  std::size_t at = 0;      ///< of its first byte
  std::string_view bytes;  ///< what was there
};
/// Appends the text with U+FFFD in place of what is not UTF-8, and where that was done. The views point into `text`.
void replace_invalid(std::string_view text, std::string& out, std::vector<Replaced>& replaced);

}  // namespace p3d::data
