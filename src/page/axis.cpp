// SPDX-License-Identifier: Apache-2.0
// Axes of charts: the choice between a linear and a logarithmic scale, and round values with short labels.
#include "axis.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace p3d::page {

namespace {

constexpr double most_decades = 1.0;  ///< decades at most that an automatic axis shows on a linear scale

/// The label of a value, such as "3e-4". Its neighbours on the axis are `step` away, and the largest value is `most`.
std::string label(double value, double step, double most) {
  double const size = std::fabs(value);
  if (value == 0.0) return "0";
  if (size >= 1e15 || most < 1.5e-3) {
    int exponent = static_cast<int>(std::floor(std::log10(size)));
    double digits = value / std::pow(10.0, exponent);
    if (std::fabs(digits) > 9.9999) digits /= 10.0, ++exponent;
    return fmt::format("{:.3g}e{}", digits, exponent);
  }
  if (size >= 1000.0) return step >= size / 1000.0 ? base::human_count(value) : fmt::format("{:.9g}", value);
  int const decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

/// A step of 1, 2 or 5 times a power of ten, such that about `count` steps make `span`.
double round_step(double span, int count) {
  double const rough = span / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  double const digits = rough / power;
  return power * (digits < 1.5 ? 1.0 : digits < 3.5 ? 2.0 : digits < 7.5 ? 5.0 : 10.0);
}

/// About `count` values in steps of 1, 2 or 5 times a power of ten; at least two where that is possible.
std::vector<Tick> linear_ticks(double low, double high, int count) {
  std::vector<Tick> out;
  for (int more = count; out.size() < 2 && more < 8 * count; more *= 2) {
    double const step = round_step(high - low, more), margin = 1e-9 * (high - low);
    out.clear();
    for (double k = std::ceil((low - margin) / step); k * step <= high + margin && out.size() < 100; k += 1.0) {
      double const value = k == 0.0 ? 0.0 : k * step;  // no -0
      out.push_back({value, label(value, step, std::max(std::fabs(low), std::fabs(high)))});
    }
  }
  return out;
}

/// Values with these first digits, every `stride` decades. low and high are logarithms.
std::vector<double> log_ticks(double low, double high, std::vector<double> const& digits, int stride) {
  std::vector<double> out;
  for (int e = static_cast<int>(std::floor(low)) - 1; e <= static_cast<int>(std::ceil(high)); ++e) {
    if ((e % stride + stride) % stride != 0) continue;
    for (double d : digits) {
      double const at = e + std::log10(d);
      if (at >= low - 1e-9 && at <= high + 1e-9) out.push_back(d * std::pow(10.0, e));
    }
  }
  return out;
}

}  // namespace

Axis::Axis(double low, double high, Scale scale, double begin, double end, bool from_zero)
    : low_(low), high_(high), begin_(begin), end_(end), log_(false) {
  // Numbers are limited to 1e300: differences of larger ones are infinite.
  constexpr double most = 1e300;
  low_ = std::clamp(std::isfinite(low) ? low : 0.0, -most, most);
  high_ = std::clamp(std::isfinite(high) ? high : 1.0, low_, most);
  log_ = low_ > 0.0 && (scale == Scale::logarithmic ||
                        (scale == Scale::automatic && std::log10(high_) - std::log10(low_) > most_decades));
  if (log_) {
    low_ = std::log10(low_);
    high_ = std::log10(high_);
  } else if (from_zero && low_ > 0.0) {
    low_ = 0.0;
  }
  double const least = log_ ? 0.02 : 1e-6 * std::max(std::fabs(low_), std::fabs(high_));
  if (high_ - low_ <= least) {  // a single value is shown in the middle
    double const room = log_ ? 0.1 : high_ == 0.0 ? 1.0 : 0.1 * std::fabs(high_);
    low_ -= from_zero && !log_ ? 0.0 : room;
    high_ += room;
  }
}

double Axis::scaled(double value) const {
  if (!log_) return value;
  return value > 0.0 ? std::log10(value) : std::numeric_limits<double>::quiet_NaN();
}

double Axis::at(double value) const { return begin_ + (scaled(value) - low_) / (high_ - low_) * (end_ - begin_); }

std::vector<Tick> Axis::ticks(int count) const {
  std::vector<Tick> out;
  auto const most = static_cast<std::size_t>(count) + 2;
  if (log_) {
    // Logarithmic axes first try many labels in each decade, then fewer, then a label in every second, third, ...
    // decade.
    for (auto const& digits : {std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 3, 5}, {1, 2, 5}, {1, 3}, {1}}) {
      for (int stride = 1; stride == 1 || (digits.size() == 1 && stride < 700); ++stride) {
        auto const values = log_ticks(low_, high_, digits, stride);
        if (values.size() > most) continue;
        if (values.size() < 3 && high_ - low_ < 1.0) break;
        for (double v : values) out.push_back({v, label(v, std::pow(10.0, std::floor(std::log10(v) + 1e-9)), v)});
        return out;
      }
    }
    return linear_ticks(std::pow(10.0, low_), std::pow(10.0, high_), count);
  }
  return linear_ticks(low_, high_, count);
}

}  // namespace p3d::page
