// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/axes.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <utility>

namespace p3d::layout {

std::vector<Axis> parse_order(std::string_view text) {
  auto order = config::read_order(text);
  if (order.error.empty()) return std::move(order.axes);
  throw base::Error({.expected = "parallel.order names axes of the mesh, fastest first, joined by '-'",
                     .found = fmt::format("\"{}\": {}", text, order.error),
                     .where = "parallel.order",
                     .fix = fmt::format("name each once: {}", config::names(dense_axes, ", "))},
                    base::ExitCode::bad_input);
}

RankGrid::RankGrid(PerAxis sizes, std::vector<Axis> const& order_fastest_first)
    : sizes_(sizes), order_(config::complete_order(order_fastest_first)) {
  for (auto a : all_axes) P3D_REQUIRE(sizes_[a] >= 1, "every axis of the mesh has at least one rank");
  for (auto i = order_fastest_first.size(); i < order_.size(); ++i)
    P3D_REQUIRE(sizes_[order_[i]] == 1, "the order of the mesh names every axis with more than one rank");
}

PerAxis RankGrid::coordinates(int rank) const {
  auto c = PerAxis::all(0);
  for (auto a : order_) {
    c[a] = rank % sizes_[a];
    rank /= sizes_[a];
  }
  return c;
}

int RankGrid::rank(PerAxis c) const {
  int r = 0;
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) r = r * sizes_[*it] + c[*it];
  return r;
}

std::vector<int> RankGrid::group(Axis axis, int rank_) const {
  auto c = coordinates(rank_);
  std::vector<int> out;
  for (int i = 0; i < sizes_[axis]; ++i) {
    c[axis] = i;
    out.push_back(rank(c));
  }
  return out;
}

int RankGrid::first_of_group(Axis axis, int number) const {
  int stride = 1;  // between neighbours along the axis
  for (auto it = order_.begin(); *it != axis; ++it) stride *= sizes_[*it];
  return number / stride * stride * sizes_[axis] + number % stride;
}

std::vector<std::vector<int>> RankGrid::groups(Axis axis) const {
  std::vector<std::vector<int>> out;
  out.reserve(static_cast<std::size_t>(num_groups(axis)));
  for (int g = 0; g < num_groups(axis); ++g) out.push_back(group(axis, first_of_group(axis, g)));
  return out;
}

Range padded_shard(std::int64_t size, int parts, int part) {
  P3D_REQUIRE(parts >= 1 && part >= 0 && part < parts, "the part exists");
  std::int64_t const piece = (size + parts - 1) / parts;
  return {piece * part, piece * (part + 1)};
}

}  // namespace p3d::layout
