// SPDX-License-Identifier: Apache-2.0
#pragma once
// An axis of a chart: from values to pixels, and where it is labelled.

#include <string>
#include <vector>

namespace p3d::report {

enum class Scale {
  linear,
  logarithmic,  ///< linear where a value is not above 0
  automatic,    ///< logarithmic where the values span more than a factor of 10
};

struct Tick {
  double value;
  std::string label;
};

class Axis {
public:
  /// For values from `low` to `high`, drawn from pixel `begin` to `end` (which may lie before it).
  /// `from_zero`: a linear axis begins at 0.
  Axis(double low, double high, Scale scale, double begin, double end, bool from_zero = false);
  bool logarithmic() const { return log_; }
  /// The pixel of a value; not finite where the axis has no place for it.
  double at(double value) const;
  /// About `count` round values, ascending. Labels have the digits that tell them apart.
  std::vector<Tick> ticks(int count) const;

private:
  double scaled(double value) const;
  double low_, high_;  ///< scaled
  double begin_, end_;
  bool log_;
};

}  // namespace p3d::report
