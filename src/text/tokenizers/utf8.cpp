// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace p3d::text {

namespace {

/// The number of bytes that follow a lead byte, and the range of the first of them.
struct Lead {
  unsigned more = 0;
  unsigned char least = 0x80, most = 0xBF;
};

/// The properties of a lead byte; 0 bytes follow when it is none.
Lead lead_of(unsigned char c) {
  if (c < 0xC2 || c > 0xF4) return {};
  if (c < 0xE0) return {1};
  if (c < 0xF0)
    return {2, static_cast<unsigned char>(c == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(c == 0xED ? 0x9F : 0xBF)};
  return {3, static_cast<unsigned char>(c == 0xF0 ? 0x90 : 0x80), static_cast<unsigned char>(c == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

Utf8Character utf8_at(std::string_view text, std::size_t at) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto const c = byte(at);
  if (c < 0x80) return {c, 1, true};
  auto const lead = lead_of(c);
  if (lead.more == 0) return {};
  char32_t code = c & (0x3Fu >> lead.more);
  // A character that is cut off or wrong counts as one replacement character, with the bytes that could still have
  // begun a right one: Unicode recommends this, and other decoders do the same.
  for (std::size_t i = 1; i <= lead.more; ++i) {
    if (at + i >= text.size()) return {0xFFFD, i, false};
    auto const next = byte(at + i);
    if (next < (i == 1 ? lead.least : 0x80) || next > (i == 1 ? lead.most : 0xBF)) return {0xFFFD, i, false};
    code = code << 6 | (next & 0x3Fu);
  }
  return {code, lead.more + 1, true};
}

Utf8Character utf8_before(std::string_view text, std::size_t end) {
  auto start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0u) == 0x80u) --start;
  auto const c = utf8_at(text.substr(0, end), start);
  return start + c.bytes == end ? c : Utf8Character{};
}

std::size_t first_invalid(std::string_view text, std::size_t from) {
  for (auto at = from; at < text.size();) {
    // Eight bytes of ASCII at a time.
    std::uint64_t eight = 0;
    while (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if (eight & 0x8080808080808080ULL) break;
      at += 8;
    }
    if (at >= text.size()) break;
    auto const c = utf8_at(text, at);
    if (!c.valid) return at;
    at += c.bytes;
  }
  return std::string_view::npos;
}

void append_utf8(char32_t code, std::string& out) {
  auto const put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

void replace_invalid(std::string_view text, std::string& out, std::vector<Replaced>& replaced) {
  for (std::size_t at = 0; at < text.size();) {
    auto const bad = std::min(first_invalid(text, at), text.size());
    out.append(text.substr(at, bad - at));
    if (bad == text.size()) return;
    auto const bytes = utf8_at(text, bad).bytes;
    replaced.push_back({out.size(), text.substr(bad, bytes)});
    out.append(replacement_character);
    at = bad + bytes;
  }
}

}  // namespace p3d::text
