// SPDX-License-Identifier: Apache-2.0
#pragma once
// The median of some numbers.

#include <algorithm>
#include <vector>

namespace p3d::base {

/// The middle number, or the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0.0;
  std::sort(numbers.begin(), numbers.end());
  auto const half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

}  // namespace p3d::base
