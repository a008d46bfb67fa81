// SPDX-License-Identifier: Apache-2.0
#pragma once
// Enums whose values have names in an input: reading, writing and help share the one table that stands below an enum:
// constexpr auto enum_names(Norm) { return std::array{"layernorm", "rmsnorm"}; }

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace p3d::base {

/// An enum with names: its values count from 0, in the order of the names. The last values may have none, where an
/// input does not write them as a name (a list, a number).
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  enum_names(value).size();
};

/// The name of a value, or "?" for a value without one.
template <NamedEnum E>
constexpr char const* to_string(E value) {
  auto const names = enum_names(value);
  auto const index = static_cast<std::size_t>(value);
  return index < names.size() ? names[index] : "?";
}

/// The values that have names, in their order.
template <NamedEnum E>
std::vector<E> values_of() {
  std::vector<E> out;
  for (std::size_t i = 0; i < enum_names(E{}).size(); ++i) out.push_back(static_cast<E>(i));
  return out;
}

}  // namespace p3d::base
