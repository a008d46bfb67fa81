// SPDX-License-Identifier: Apache-2.0
#include "text/corpus/text_check.hpp"

#include "text/tokenizers/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace p3d::text {

namespace {

/// Bytes of a file that are looked at.
constexpr std::size_t looked_at = 8192;

/// True for a control character that text does not have. Text may have tabs, ends of lines and pages, backspaces and
/// escapes.
bool is_binary(char c) {
  auto const byte = static_cast<unsigned char>(c);
  return byte < 0x20 && !(byte >= 0x08 && byte <= 0x0d) && byte != 0x1b;
}

}  // namespace

std::string why_not_text(std::string_view head) {
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) return "UTF-16 or UTF-32: convert it to UTF-8";
  if (auto const nul = head.find('\0'); nul != head.npos) return fmt::format("a NUL at byte {}", nul + 1);
  auto const control = std::find_if(head.begin(), head.end(), is_binary);
  if (control == head.end()) return "";
  auto const invalid = first_invalid(head);
  if (invalid == head.npos || invalid + 4 > head.size()) return "";  // the last character may be cut off
  return fmt::format("a control character at byte {}, and no UTF-8 at byte {}", control - head.begin() + 1,
                     invalid + 1);
}

std::string why_not_text_file(std::string const& path, Compression compression) {
  std::string head(looked_at, '\0');
  head.resize(open_bytes(path, compression)->read(head.data(), head.size()));
  return why_not_text(head);
}

}  // namespace p3d::text
