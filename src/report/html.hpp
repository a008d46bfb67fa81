// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pieces of the page.

#include <string>
#include <string_view>

namespace p3d::report {

/// Text as it may stand between tags and in quoted attributes. Control characters, which no page may hold, and bytes
/// that are no UTF-8 become a replacement character.
std::string escaped(std::string_view text);

std::string base64(std::string_view bytes);

}  // namespace p3d::report
