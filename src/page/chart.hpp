// SPDX-License-Identifier: Apache-2.0
#pragma once
// A chart as inline SVG. Its colours are those of the page's classes r0, r1, ..., one for each run.

#include "axis.hpp"
#include "curve.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::page {

/// The numbers of one run in a chart, as recorded.
struct Curve {
  std::size_t run = 0;
  std::vector<Point> points;        ///< drawn as a line, with a mean over it where it is long
  std::vector<Point> marks;         ///< drawn as rings: validation
  std::vector<double> starts;       ///< x at which the run continued after a stop
  std::vector<std::int64_t> steps;  ///< steps of the points, for messages about values that are not finite
  bool smooth = true;               ///< draw the mean over long lines
};

/// A chart before it is drawn.
struct Chart {
  std::string title, x_title, y_title;
  Scale x_scale = Scale::linear, y_scale = Scale::automatic;
  bool y_from_zero = false;
  std::vector<Curve> curves;
};

/// The size of a drawing in its own coordinates.
struct ChartSize {
  double width = 460, height = 290;
};

/// The chart as an element <svg>. Without any value it says so.
std::string to_svg(Chart const& chart, ChartSize size);

}  // namespace p3d::page
