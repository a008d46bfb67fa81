// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/printable.hpp>

#include <fmt/format.h>

namespace p3d::base {

namespace {

/// The bytes of the UTF-8 character at the start of `text`, or 0 when there is none that may be shown: control
/// characters, and those that turn the order of a line, count as none.
std::size_t utf8_length(std::string_view text) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t const length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  bool const control = byte(0) == 0xc2 && byte(1) < 0xa0;
  bool const overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  bool const no_character = (byte(0) == 0xed && byte(1) >= 0xa0) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  bool const turns = byte(0) == 0xe2 && ((byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return control || overlong || no_character || turns ? 0 : length;
}

/// The text with escapes in place of what must not be shown; with `lines`, line ends and tabs are kept.
std::string escape(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    auto const byte = static_cast<unsigned char>(text[0]);
    bool const plain = (byte >= 0x20 && byte < 0x7f) || (lines && (byte == '\n' || byte == '\t'));
    std::size_t const length = plain ? 1 : utf8_length(text);
    if (length > 0)
      out.append(text.substr(0, length));
    else if (byte == '\n' || byte == '\t')
      out += byte == '\n' ? "\\n" : "\\t";
    else
      out += fmt::format("\\x{:02x}", byte);
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escape(text, true); }

std::string printable_line(std::string_view text) { return escape(text, false); }

bool is_file_name(std::string_view name) {
  constexpr std::size_t longest = 255;
  return !name.empty() && name.size() <= longest && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && printable_line(name) == name;
}

}  // namespace p3d::base
