// SPDX-License-Identifier: Apache-2.0
// Numbers and lists as people read them, and the nearest known word for a misspelt one.
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace p3d::base {

namespace {
/// The number of insertions, deletions, replacements and swaps of neighbours that turn a into b (Damerau-Levenshtein,
/// restricted).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}
}  // namespace

std::string nearest(std::string_view word, std::vector<std::string> const& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (auto const& candidate : known) {
    auto const distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < 4) return best;
  // Words that are cut short are too far from the whole ones in edits: "optim" for "optimizer".
  for (auto const& candidate : known) {
    if (!candidate.starts_with(word)) continue;
    if (!best.empty()) return "";  // the beginning of several
    best = candidate;
  }
  return best;
}

double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

std::string human_count(double value) {
  static constexpr std::array<char const*, 8> units{"", "K", "M", "B", "T", "P", "E", "Z"};
  std::size_t unit = 0;
  // The limit is 999.95 because that would be printed as 1000 of its unit with four digits.
  while (std::fabs(value) >= (unit == 0 ? 1000.0 : 999.95) && unit + 1 < units.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:g}", value) : fmt::format("{:.4g}{}", value, units[unit]);
}

std::string human_bytes(double bytes) {
  static constexpr std::array<char const*, 6> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  // The limit is 1023.995 because that would be printed as 1024.00 of its unit.
  while (std::fabs(bytes) >= (unit == 0 ? 1024.0 : 1023.995) && unit + 1 < units.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:g} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  // The limits are the values that would round up to the next unit.
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  auto const whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string counted(std::int64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : word.ends_with("ch") ? "es" : "s");
}

std::string join(std::vector<std::string> const& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string join_last(std::vector<std::string> const& parts, std::string_view separator, std::string_view last) {
  if (parts.size() < 2) return join(parts, separator);
  return join({parts.begin(), parts.end() - 1}, separator).append(last).append(parts.back());
}

std::string number_ranges(std::vector<int> const& numbers, std::string_view to, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0, j = 0; i < numbers.size(); i = j) {
    for (j = i + 1; j < numbers.size() && numbers[j] == numbers[j - 1] + 1;) ++j;
    if (!text.empty()) text += separator;
    text += std::to_string(numbers[i]);
    if (j - i > 1) text.append(to).append(std::to_string(numbers[j - 1]));
  }
  return text;
}

}  // namespace p3d::base
