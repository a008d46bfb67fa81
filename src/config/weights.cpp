// SPDX-License-Identifier: Apache-2.0
#include <p3d/config/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>

namespace p3d::config {

namespace {

// A blend repeats after so many samples; a run that goes on looks through one period.
constexpr std::int64_t largest_sum = std::int64_t{1} << 22;

/// A decimal number, digits * 10^exponent, without zeros at the end.
struct Decimal {
  std::int64_t digits = 0;
  int exponent = 0;
};

/// The shortest decimal number that stands for a double.
Decimal decimal(double value) {
  auto text = fmt::format("{}", value);
  Decimal out;
  if (auto const e = text.find('e'); e != std::string::npos) {
    out.exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  if (auto const point = text.find('.'); point != std::string::npos) {
    out.exponent -= static_cast<int>(text.size() - point - 1);
    text.erase(point, 1);
  }
  while (text.size() > 1 && text.ends_with('0')) {
    text.pop_back();
    ++out.exponent;
  }
  std::from_chars(text.data(), text.data() + text.size(), out.digits);  // at most 17 digits, so they fit
  return out;
}

}  // namespace

// All weights are brought to the smallest exponent, and divided by what they have in common: 0.3 and 0.7 are 3 and 7
// times 10^-1; 0.25 and 0.5 are 25 and 50 times 10^-2, divided by 25 gives 1 and 2.
std::optional<std::vector<std::int64_t>> whole_weights(std::vector<double> const& weights) {
  std::vector<Decimal> decimals;
  int least = 0;
  for (double const w : weights) {
    decimals.push_back(decimal(w));
    least = decimals.size() == 1 ? decimals[0].exponent : std::min(least, decimals.back().exponent);
  }
  std::vector<std::int64_t> out;
  std::int64_t divisor = 0;
  for (auto d : decimals) {
    for (; d.exponent > least; --d.exponent) {
      if (__builtin_mul_overflow(d.digits, std::int64_t{10}, &d.digits)) return {};
    }
    divisor = std::gcd(divisor, d.digits);
    out.push_back(d.digits);
  }
  std::int64_t sum = 0;
  for (auto& w : out) {
    w /= divisor;
    if (w > largest_sum || (sum += w) > largest_sum) return {};
  }
  return out;
}

}  // namespace p3d::config
