// SPDX-License-Identifier: Apache-2.0
// Texts of axes: reading and writing parallel.order and comm.backend_axes.
#include <p3d/config/axes.hpp>

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

std::string names(AxisSet axes, std::string_view separator) {
  std::string out;
  for (auto a : axes.list()) out += (out.empty() ? "" : std::string(separator)) + name(a);
  return out;
}

MeshOrder read_order(std::string_view text) {
  MeshOrder out;
  for (std::size_t begin = 0; begin <= text.size();) {
    auto const end = std::min(text.find('-', begin), text.size());
    auto const word = text.substr(begin, end - begin);
    auto const known = dense_axes.list();
    auto const axis = std::find_if(known.begin(), known.end(), [&](Axis a) { return word == name(a); });
    if (axis == known.end()) {
      out.error = word.empty() ? "a name is missing" : fmt::format("'{}' is no axis of the mesh", word);
    } else if (std::find(out.axes.begin(), out.axes.end(), *axis) != out.axes.end()) {
      out.error = fmt::format("{} twice", word);
    }
    if (!out.error.empty()) return out;
    out.axes.push_back(*axis);
    begin = end + 1;
  }
  return out;
}

std::vector<Axis> complete_order(std::vector<Axis> const& order) {
  auto out = order;
  for (auto a : dense_axes.list()) {
    if (std::find(order.begin(), order.end(), a) == order.end()) out.push_back(a);
  }
  return out;
}

std::string to_text(std::vector<Axis> const& order) {
  std::vector<std::string> words;
  for (auto a : order) words.emplace_back(name(a));
  return base::join(words, "-");
}

}  // namespace p3d::config
