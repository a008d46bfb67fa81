// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace p3d::report {

/// Ascending numbers as "0-3,8,10-11".
inline std::string number_ranges(std::vector<int> const& numbers) {
  std::string text;
  for (std::size_t i = 0, j = 0; i < numbers.size(); i = j) {
    for (j = i + 1; j < numbers.size() && numbers[j] == numbers[j - 1] + 1;) ++j;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[i]);
    if (j - i > 1) text += '-' + std::to_string(numbers[j - 1]);
  }
  return text;
}

}  // namespace p3d::report
