// SPDX-License-Identifier: Apache-2.0
#include "config/divide.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace p3d::config {

std::vector<std::int64_t> nearest_multiples(std::int64_t value, std::int64_t step) {
  auto const below = value / step * step;
  if (below == value) return {value};
  if (below == 0) return {step};
  return {below, below + step};
}

std::vector<std::int64_t> nearest_divisors(std::int64_t value, std::int64_t of) {
  // Divisors come in pairs (d, of/d), so this ends after the square root of `of` steps.
  std::int64_t below = 0, above = 0;
  auto const consider = [&](std::int64_t d) {
    if (d <= value && d > below) below = d;
    if (d > value && (above == 0 || d < above)) above = d;
  };
  for (std::int64_t d = 1; d * d <= of; ++d) {
    if (of % d != 0) continue;
    consider(d);
    consider(of / d);
  }
  if (below == value) return {value};
  std::vector<std::int64_t> out;
  if (below > 0) out.push_back(below);
  if (above > 0) out.push_back(above);
  return out;
}

std::string one_of(std::vector<std::int64_t> const& values) { return fmt::format("{}", fmt::join(values, " or ")); }

std::vector<std::int64_t> even_parts(std::int64_t total, std::int64_t parts) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < parts; ++i) out.push_back(total / parts + (i < total % parts ? 1 : 0));
  return out;
}

}  // namespace p3d::config
