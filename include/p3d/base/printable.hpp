// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strings that came from elsewhere (a file, a model, a folder's list), made safe to show on a terminal or in a page.

#include <string>
#include <string_view>

namespace p3d::base {

/// The text, made safe. Everything that would move the cursor or change the terminal, or turn the order of the text
/// that is read (U+202A to U+202E, U+2066 to U+2069), and every byte that is not UTF-8, becomes an escape like "\x1b".
/// Line ends and tabs are kept.
std::string printable(std::string_view text);
/// The text on one line, made safe as by printable(); line ends and tabs are shown as "\n" and "\t".
std::string printable_line(std::string_view text);

/// The text as it may stand between the tags and in the quoted attributes of HTML and SVG. Control characters, which no
/// page may contain, and bytes that are not UTF-8 become a replacement character.
std::string markup_text(std::string_view text);

/// True for the name of one file in one folder, which can be shown as it is: 1 to 255 bytes of UTF-8 without "/" and
/// control characters; neither "." nor "..".
bool is_file_name(std::string_view name);

}  // namespace p3d::base
