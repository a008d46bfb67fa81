// SPDX-License-Identifier: Apache-2.0
#pragma once
// A chart as inline SVG. Colours are those of the classes r0, r1, ... of the page, one for each run.

#include "axis.hpp"
#include "curve.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::report {

/// One run's numbers in a chart, as recorded.
struct Curve {
  std::size_t run = 0;
  std::vector<Point> points;        ///< drawn as a line, with a mean over it where it is long
  std::vector<Point> marks;         ///< drawn as rings: validation
  std::vector<double> starts;       ///< where the run went on after a stop
  std::vector<std::int64_t> steps;  ///< of the points, for what is said about values that are not finite
  bool smooth = true;
};

struct Chart {
  std::string title, x_title, y_title;
  Scale x_scale = Scale::linear, y_scale = Scale::automatic;
  bool y_from_zero = false;
  std::vector<Curve> curves;
};

/// Pixels of the drawing's own coordinates.
struct ChartSize {
  double width = 460, height = 290;
};

/// An element <svg>; without a value, one that says so.
std::string to_svg(Chart const& chart, ChartSize size);

}  // namespace p3d::report
