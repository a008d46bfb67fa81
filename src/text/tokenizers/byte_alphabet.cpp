// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/byte_alphabet.hpp"

#include "text/tokenizers/utf8.hpp"

#include <array>
#include <cstdint>

namespace p3d::text {

namespace {

/// The letters of all bytes, and the bytes of all letters. An example: a space, byte 0x20, is written as U+0120.
struct Alphabet {
  std::array<std::string, 256> letters;
  std::array<std::int16_t, 0x144> bytes{};  ///< the byte of each letter's code; -1: the code is no letter

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      bool const printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      char32_t const code = printable ? b : next++;
      append_utf8(code, letters[b]);
      bytes[code] = static_cast<std::int16_t>(b);
    }
  }
};

Alphabet const& alphabet() {
  static Alphabet const one;
  return one;
}

}  // namespace

std::string_view letter_of_byte(unsigned char byte) { return alphabet().letters[byte]; }

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  auto const& known = alphabet().bytes;
  std::string out;
  for (std::size_t at = 0; at < letters.size();) {
    auto const c = utf8_at(letters, at);
    if (!c.valid || c.code >= known.size() || known[c.code] < 0) return {};
    out.push_back(static_cast<char>(known[c.code]));
    at += c.bytes;
  }
  return out;
}

std::string letters_of_bytes(std::string_view bytes) {
  std::string out;
  for (char const b : bytes) out += letter_of_byte(static_cast<unsigned char>(b));
  return out;
}

}  // namespace p3d::text
