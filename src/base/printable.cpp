// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/printable.hpp>

#include <fmt/format.h>

namespace p3d::base {

namespace {

/// The bytes of the UTF-8 character that `text` begins with (RFC 3629: no overlong forms, no surrogates); 0: none.
std::size_t utf8_length(std::string_view text) {
  auto const byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  auto const first = byte(0);
  std::size_t const length = first < 0x80                     ? 1
                             : first >= 0xc2 && first <= 0xdf ? 2
                             : first >= 0xe0 && first <= 0xef ? 3
                             : first >= 0xf0 && first <= 0xf4 ? 4
                                                              : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  bool const overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  bool const no_character = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return overlong || no_character ? 0 : length;
}

/// True for a control character of ASCII other than a line's end and a tab.
bool is_control(unsigned char byte) { return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f; }

/// True for a character of several bytes that must not reach a terminal: a control character, or one that turns the
/// order of a line.
bool acts_on_terminal(std::string_view character) {
  if (character.size() < 2) return false;
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  bool const control = byte(0) == 0xc2 && byte(1) < 0xa0;
  return control || (byte(0) == 0xe2 && ((byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9)));
}

/// The text with escapes in place of what must not be shown; with `lines`, line ends and tabs are kept.
std::string escape(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    auto const byte = static_cast<unsigned char>(text[0]);
    auto const character = text.substr(0, utf8_length(text));
    bool const blank = byte == '\n' || byte == '\t';
    bool const shown = blank ? lines : !character.empty() && !is_control(byte) && !acts_on_terminal(character);
    if (shown)
      out += character;
    else if (blank)
      out += byte == '\n' ? "\\n" : "\\t";
    else
      out += fmt::format("\\x{:02x}", byte);
    text.remove_prefix(shown ? character.size() : 1);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escape(text, true); }

std::string printable_line(std::string_view text) { return escape(text, false); }

std::string markup_text(std::string_view text) {
  constexpr char const* replacement = "\xEF\xBF\xBD";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    auto const character = text.substr(0, utf8_length(text));
    if (character.empty() || is_control(static_cast<unsigned char>(text[0])))
      out += replacement;
    else if (character == "<")
      out += "&lt;";
    else if (character == ">")
      out += "&gt;";
    else if (character == "&")
      out += "&amp;";
    else if (character == "\"")
      out += "&quot;";
    else if (character == "'")
      out += "&#39;";
    else
      out += character;
    text.remove_prefix(character.empty() ? 1 : character.size());
  }
  return out;
}

bool is_file_name(std::string_view name) {
  constexpr std::size_t longest = 255;
  return !name.empty() && name.size() <= longest && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && printable_line(name) == name;
}

}  // namespace p3d::base
