// SPDX-License-Identifier: Apache-2.0
#pragma once
// An axis of a chart: it turns values into pixels, and says which values are labelled.

#include <string>
#include <vector>

namespace p3d::page {

/// The scale of an axis.
enum class Scale {
  linear,
  logarithmic,  ///< linear where a value is not above 0
  automatic,    ///< logarithmic where the values span more than a factor of 10
};

/// A labelled value.
struct Tick {
  double value;
  std::string label;
};

class Axis {
public:
  /// An axis for values from `low` to `high`, drawn from pixel `begin` to `end` (which may be the smaller one). With
  /// `from_zero` a linear axis begins at 0.
  Axis(double low, double high, Scale scale, double begin, double end, bool from_zero = false);
  bool logarithmic() const { return log_; }
  /// The pixel of a value; not finite where the axis cannot show the value.
  double at(double value) const;
  /// About `count` round values, ascending. Labels have the digits that tell them apart.
  std::vector<Tick> ticks(int count) const;

private:
  /// The value, or its logarithm on a logarithmic axis.
  double scaled(double value) const;
  double low_, high_;  ///< ends of the axis, as scaled() gives them
  double begin_, end_;
  bool log_;
};

}  // namespace p3d::page
