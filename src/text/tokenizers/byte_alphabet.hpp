// SPDX-License-Identifier: Apache-2.0
#pragma once
// The alphabet of byte-level BPE files: 256 printable characters that stand for the bytes. A byte that is a printable
// character of Latin-1 stands for itself, the others get the characters from U+0100 on (GPT-2's encoder.py).

#include <optional>
#include <string>
#include <string_view>

namespace p3d::text {

/// The character of a byte, as UTF-8.
std::string_view letter_of_byte(unsigned char byte);
/// The bytes that letters stand for; nothing when a character is not in the alphabet.
std::optional<std::string> bytes_of_letters(std::string_view letters);
/// The letters of bytes, as UTF-8.
std::string letters_of_bytes(std::string_view bytes);

}  // namespace p3d::text
