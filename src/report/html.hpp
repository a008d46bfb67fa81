// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodings for the page of `p3d report`.

#include <string>
#include <string_view>

namespace p3d::report {

/// The text as it may stand between tags and in quoted attributes. Control characters, which no page may contain, and
/// bytes that are not UTF-8 become a replacement character.
std::string escaped(std::string_view text);

/// Bytes in base64, for pictures inside the page.
std::string base64(std::string_view bytes);

}  // namespace p3d::report
