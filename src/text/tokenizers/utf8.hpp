// SPDX-License-Identifier: Apache-2.0
#pragma once
// UTF-8, and bytes that are not UTF-8. Such bytes are read as other libraries read them: each maximal part of a
// character stands for one U+FFFD (Unicode, section 3.9, "U+FFFD Substitution of Maximal Subparts").

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// A character of a text: its code and its bytes there. A character that is not valid has the code U+FFFD.
struct Utf8Character {
  char32_t code = 0xFFFD;
  std::size_t bytes = 1;
  bool valid = false;
};
/// The character at text[at], which must exist.
Utf8Character utf8_at(std::string_view text, std::size_t at);
/// The character that ends at text[end - 1]. The text is valid, and end > 0.
Utf8Character utf8_before(std::string_view text, std::size_t end);
/// The place of the first byte, at or after `from`, that is not UTF-8; npos when there is none.
std::size_t first_invalid(std::string_view text, std::size_t from = 0);
/// Appends a character as UTF-8.
void append_utf8(char32_t code, std::string& out);

/// A U+FFFD in a text that stands for bytes that are not UTF-8.
struct Replaced {
  std::size_t at = 0;      ///< place of its first byte
  std::string_view bytes;  ///< the bytes that it stands for
};
/// Appends the text with U+FFFD in place of bytes that are not UTF-8, and lists these places. The views point into
/// `text`.
void replace_invalid(std::string_view text, std::string& out, std::vector<Replaced>& replaced);

}  // namespace p3d::text
