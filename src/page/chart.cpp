// SPDX-License-Identifier: Apache-2.0
// Charts as SVG. The points of a curve are turned into pixels, thinned to what a pixel column can show, and drawn as
// one path; a long curve is drawn thin, with its mean over it. Values that are not finite interrupt the line and get a
// cross at the upper edge.
#include "chart.hpp"

#include <p3d/base/printable.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace p3d::page {

namespace {

/// Margins of a chart around its axes.
constexpr double left = 54, right = 14, top = 26, bottom = 40;
constexpr std::size_t crowded = 50;     ///< number of rings from which they are drawn smaller
constexpr std::size_t most_flaws = 50;  ///< marks of values that are not finite, at most for one run

/// The lowest and highest finite value that was added.
struct Bounds {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double least_positive = low;
  void add(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
    if (v > 0.0) least_positive = std::min(least_positive, v);
  }
  bool empty() const { return high < low; }
};

/// Appends a number rounded to tenths, in the fewest characters: "12.3".
void append_number(std::string& out, double v) {
  auto const tenths = static_cast<long long>(std::llround(v * 10.0));
  if (tenths < 0) out += '-';
  fmt::format_to(std::back_inserter(out), "{}", std::llabs(tenths) / 10);
  if (tenths % 10 != 0) fmt::format_to(std::back_inserter(out), ".{}", std::llabs(tenths) % 10);
}

/// The data of a <path> through the pixels.
std::string path_of(std::vector<Point> const& pixels) {
  std::string out;
  for (auto const& p : pixels) {
    out += out.empty() ? 'M' : 'L';
    append_number(out, p.x);
    out += ' ';
    append_number(out, p.y);
  }
  return out;
}

/// A chart while it is drawn.
class Drawing {
public:
  Drawing(Chart const& chart, ChartSize size, Bounds x, Bounds y)
      : chart_(chart),
        size_(size),
        x_(chart.x_scale == Scale::logarithmic ? x.least_positive : x.low, x.high, chart.x_scale, left,
           size.width - right, x.low < x.high / 10),
        y_(y.low, y.high, chart.y_scale, size.height - bottom, top, chart.y_from_zero) {}

  std::string svg() {
    frame();
    for (auto const& curve : chart_.curves) draw(curve);
    return std::move(out_);
  }

private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  /// Draws the grid, the axes, their labels and titles.
  void frame() {
    double const low = size_.height - bottom, end = size_.width - right;
    add("<g class=\"grid\">");
    // A label needs about 70 pixels in width and 56 in height.
    auto const columns = x_.ticks(static_cast<int>((end - left) / 70));
    auto const rows = y_.ticks(static_cast<int>((low - top) / 56));
    for (auto const& t : rows) add("<path d=\"M{} {:.1f}H{}\"/>", left, y_.at(t.value), end);
    for (auto const& t : columns) add("<path d=\"M{:.1f} {}v4\"/>", x_.at(t.value), low);
    add("<path class=\"axis\" d=\"M{} {}H{}\"/></g>\n<g class=\"labels\">", left, low, end);
    for (auto const& t : rows)
      add("<text x=\"{}\" y=\"{:.1f}\" class=\"y\">{}</text>", left - 6, y_.at(t.value) + 4, t.label);
    for (auto const& t : columns)
      add("<text x=\"{:.1f}\" y=\"{}\" class=\"x\">{}</text>", x_.at(t.value), low + 18, t.label);
    add("<text x=\"{}\" y=\"{}\" class=\"x title\">{}</text><text x=\"4\" y=\"14\" class=\"title\">{}</text></g>\n",
        (left + end) / 2, size_.height - 5, base::markup_text(chart_.x_title), base::markup_text(chart_.y_title));
  }

  /// Draws one run: starts, line, mean, crosses and rings.
  void draw(Curve const& curve) {
    add("<g class=\"r{}\">", curve.run);
    for (double x : curve.starts)
      add("<path class=\"start\" d=\"M{:.1f} {}V{}\"><title>the run went on here after a stop</title></path>", x_.at(x),
          top, size_.height - bottom);
    std::vector<double> values;
    values.reserve(curve.points.size());
    for (auto const& p : curve.points) values.push_back(p.y);
    auto const window = curve.smooth ? smoothing_window(values.size()) : 1;
    // A long curve is drawn twice: every step as a thin line, and the mean over it.
    line(curve.points, values, window > 1 ? "raw" : "line");
    if (window > 1) line(curve.points, smoothed(values, window), "line");
    flaws(curve);
    std::vector<Point> rings;
    for (auto const& m : curve.marks) {
      Point const p{x_.at(m.x), y_.at(m.y)};
      if (std::isfinite(p.x) && std::isfinite(p.y)) rings.push_back(p);
    }
    rings = thinned(rings);
    if (rings.size() > 1) add("<path class=\"between\" d=\"{}\"/>", path_of(rings));
    double const radius = rings.size() > crowded ? 1.6 : 3.0;
    for (auto const& p : rings) add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>", p.x, p.y, radius);
    add("</g>\n");
  }

  /// Draws a line through the values at the x of `points`. A value that cannot be drawn interrupts the line.
  void line(std::vector<Point> const& points, std::vector<double> const& values, char const* look) {
    std::vector<Point> piece;
    // A piece of one point has no line to be seen, so it becomes a dot.
    auto const end_piece = [&] {
      if (piece.size() == 1)
        add("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"1.8\"/>\n", piece[0].x, piece[0].y);
      if (piece.size() > 1) add("<path class=\"{}\" d=\"{}\"/>\n", look, path_of(thinned(piece)));
      piece.clear();
    };
    for (std::size_t i = 0; i < points.size(); ++i) {
      Point const p{x_.at(points[i].x), y_.at(values[i])};
      if (std::isfinite(p.x) && std::isfinite(p.y))
        piece.push_back(p);
      else
        end_piece();
    }
    end_piece();
  }

  /// Draws crosses at the upper edge for NaN and infinite values.
  void flaws(Curve const& curve) {
    std::size_t drawn = 0;
    double last = -1.0;
    for (std::size_t i = 0; i < curve.points.size() && drawn < most_flaws; ++i) {
      double const v = curve.points[i].y, x = x_.at(curve.points[i].x);
      if (std::isfinite(v) || !std::isfinite(x) || x < last + 1.0) continue;
      add("<path class=\"flaw\" d=\"M{:.1f} {}l8 8m0 -8l-8 8\"><title>{} at step {}</title></path>", x - 4, top - 4,
          std::isnan(v) ? "NaN" : "infinite", i < curve.steps.size() ? curve.steps[i] : 0);
      last = x;
      ++drawn;
    }
  }

  Chart const& chart_;
  ChartSize size_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string to_svg(Chart const& chart, ChartSize size) {
  Bounds x, y;
  for (auto const& curve : chart.curves) {
    for (auto const& p : curve.points) x.add(p.x), y.add(p.y);
    for (auto const& p : curve.marks) x.add(p.x), y.add(p.y);
  }
  auto out = fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", size.width,
                         size.height, base::markup_text(chart.title));
  if (x.empty() || y.empty())
    out += fmt::format("<text class=\"x\" x=\"{}\" y=\"{}\">no value yet</text>", size.width / 2, size.height / 2);
  if (!x.empty()) out += Drawing(chart, size, x, y).svg();
  return out + "</svg>\n";
}

}  // namespace p3d::page
