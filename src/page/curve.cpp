// SPDX-License-Identifier: Apache-2.0
#include "curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace p3d::page {

std::vector<Point> thinned(std::vector<Point> const& points) {
  std::vector<Point> out;
  for (std::size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    double const column = std::floor(points[begin].x);
    std::size_t low = begin, high = begin;
    for (end = begin; end < points.size() && std::floor(points[end].x) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    std::array<std::size_t, 4> kept{begin, std::min(low, high), std::max(low, high), end - 1};
    auto const last = std::unique(kept.begin(), kept.end());
    for (auto i = kept.begin(); i != last; ++i) out.push_back(points[*i]);
  }
  return out;
}

std::vector<double> smoothed(std::vector<double> const& values, std::size_t window) {
  auto const n = values.size();
  // Sums are taken over a tree: differences of running sums would lose all digits behind one huge value.
  std::vector<double> tree(2 * n, 0.0), out(values);
  std::vector<std::size_t> finite(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    bool const counts = std::isfinite(values[i]);
    tree[n + i] = counts ? values[i] : 0.0;
    finite[i + 1] = finite[i] + (counts ? 1 : 0);
  }
  for (std::size_t i = n; i-- > 1;) tree[i] = tree[2 * i] + tree[2 * i + 1];
  auto const sum = [&](std::size_t begin, std::size_t end) {
    double s = 0.0;
    for (begin += n, end += n; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) s += tree[begin++];
      if (end % 2 == 1) s += tree[--end];
    }
    return s;
  };
  for (std::size_t i = 0; i < n; ++i) {
    // Near the ends the window shrinks on both sides, so that the mean stays centred.
    auto const half = std::min({window / 2, i, n - 1 - i});
    if (half == 0 || !std::isfinite(values[i])) continue;
    auto const begin = i - half, end = i + half + 1;
    out[i] = sum(begin, end) / static_cast<double>(finite[end] - finite[begin]);
  }
  return out;
}

std::size_t smoothing_window(std::size_t values) {
  constexpr std::size_t least = 300;
  return values < least ? 1 : std::max<std::size_t>(5, values / 50) | 1U;
}

}  // namespace p3d::page
