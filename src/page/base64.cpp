// SPDX-License-Identifier: Apache-2.0
#include "base64.hpp"

#include <algorithm>
#include <cstdint>

namespace p3d::page {

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  // Three bytes are four digits of 6 bits; the last group is filled up with '='.
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    auto const have = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8U | (k < have ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += k <= have ? digits[three >> (18 - 6 * k) & 63U] : '=';
  }
  return out;
}

}  // namespace p3d::page
