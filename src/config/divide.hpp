// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers near a number that divide it or are its multiples: the "set it to 96 or 108" of a fix.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::config {

/// The multiples of `step` next to `value`, below (if positive) and above; {value} when it is a multiple itself.
std::vector<std::int64_t> nearest_multiples(std::int64_t value, std::int64_t step);
/// The divisors of `of` next to `value`, below and above; {value} when it is a divisor itself.
std::vector<std::int64_t> nearest_divisors(std::int64_t value, std::int64_t of);
/// The numbers as a text: "96 or 108".
std::string one_of(std::vector<std::int64_t> const& values);
/// `total` as a sum of `parts` numbers, larger ones first: 30 in 4 parts is {8, 8, 7, 7}.
std::vector<std::int64_t> even_parts(std::int64_t total, std::int64_t parts);

}  // namespace p3d::config
