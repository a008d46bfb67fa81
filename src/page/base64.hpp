// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes as text, for pictures inside the page of `p3d report`.

#include <string>
#include <string_view>

namespace p3d::page {

/// The bytes in base64 (RFC 4648, section 4).
std::string base64(std::string_view bytes);

}  // namespace p3d::page
