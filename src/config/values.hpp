// SPDX-License-Identifier: Apache-2.0
#pragma once
// One TOML value to one C++ value: type and range, or a statement of what is wrong with it.

#include "config/toml.hpp"

#include <p3d/base/enum_names.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace p3d::config {

/// The reason why a value does not fit its key. `node` is the offending value: the key's own, or an element of its
/// list.
struct Mismatch {
  toml::node const* node;
  std::string found;
  std::string fix;
};
/// Empty: the value fits.
using MaybeMismatch = std::optional<Mismatch>;

/// A closed range; the end is left out of messages when it is only what 64 bits can hold.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
std::string describe(IntegerRange range);  ///< "integer >= 1", "integer from 1 to 64"

/// The range [min, max], without an end where its `open` is set.
struct NumberRange {
  double min = 0.0;
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;
};
std::string describe(NumberRange range);  ///< "number >= 0", "number in [0, 1)"

/// A value as messages name it: `the string "abc"`, `the integer 3`, `a list`.
std::string describe(toml::node const& node);

/// Reads an integer. It, and the other readers below, set `out` only when the value fits.
MaybeMismatch read_integer(toml::node const& node, IntegerRange range, std::int64_t& out);
/// Reads a number. Integers count as numbers; NaN and infinity do not.
MaybeMismatch read_number(toml::node const& node, NumberRange range, double& out);
/// Reads true or false.
MaybeMismatch read_flag(toml::node const& node, bool& out);
/// Reads a text.
MaybeMismatch read_string(toml::node const& node, bool may_be_empty, std::string& out);
/// Reads a wall time, "90s", "30min", "2h" (also "1.5h"): positive, of whole seconds, at most 10,000 hours.
MaybeMismatch read_duration(toml::node const& node, std::int64_t& seconds);
/// Reads one of `choices`; `out` is its index.
MaybeMismatch read_choice(toml::node const& node, std::vector<std::string> const& choices, std::size_t& out);
/// One of `values`, by its name.
template <base::NamedEnum E>
MaybeMismatch read_enum(toml::node const& node, E& out, std::vector<E> const& values = base::values_of<E>()) {
  std::vector<std::string> names;
  for (auto value : values) names.emplace_back(to_string(value));
  std::size_t index = 0;
  auto mismatch = read_choice(node, names, index);
  if (!mismatch) out = values[index];
  return mismatch;
}
/// Every element of a list by `read_one`, up to the first that does not fit; its mismatch says that it is in a list.
MaybeMismatch read_list(toml::array const& list, std::function<MaybeMismatch(toml::node const&)> const& read_one);
/// Reads a list of numbers.
MaybeMismatch read_numbers(toml::node const& node, NumberRange range, std::vector<double>& out);
/// One number for all layers, or a list of them; empty where all are `usual`.
MaybeMismatch read_of_layers(toml::node const& node, IntegerRange range, std::int64_t usual,
                             std::vector<std::int64_t>& out);
/// The text of such a value.
std::string text_of_layers(std::vector<std::int64_t> const& values, std::int64_t usual);

}  // namespace p3d::config
