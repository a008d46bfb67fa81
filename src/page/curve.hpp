// SPDX-License-Identifier: Apache-2.0
#pragma once
// Curves of any length, made small enough to draw.

#include <cstddef>
#include <vector>

namespace p3d::page {

struct Point {
  double x = 0.0, y = 0.0;
  bool operator==(Point const&) const = default;
};

/// The points of each column, floor(x), that a line needs: the first, the lowest, the highest and the last, in their
/// order. A line through them covers the same pixels as one through all points (M4, doi.org/10.14778/2732951.2732953).
/// Coordinates must be finite.
std::vector<Point> thinned(std::vector<Point> const& points);

/// The mean of the `window` values around each value, of fewer near the ends, so that nothing shifts. Values that are
/// not finite do not count, and are kept.
std::vector<double> smoothed(std::vector<double> const& values, std::size_t window);

/// The window for a curve of so many values: about 2 % of them, odd; 1 (nothing is smoothed) for short curves.
std::size_t smoothing_window(std::size_t values);

}  // namespace p3d::page
