// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/axes.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace p3d::layout {

std::vector<Axis> parse_order(std::string_view text) {
  auto order = config::read_order(text);
  if (order.error.empty()) return std::move(order.axes);
  base::refuse({.expected = "parallel.order names axes of the mesh, fastest first, joined by '-'",
                .found = fmt::format("\"{}\": {}", text, order.error),
                .where = "parallel.order",
                .fix = fmt::format("name each once: {}", config::names(dense_axes, ", "))});
}

RankGrid::RankGrid(PerAxis const& sizes, std::vector<Axis> const& order_fastest_first)
    : sizes_(sizes), order_(config::complete_order(order_fastest_first)) {
  for (auto a : all_axes) P3D_REQUIRE(sizes[a] >= 1, "every axis of the mesh has at least one rank");
  for (auto i = order_fastest_first.size(); i < order_.size(); ++i)
    P3D_REQUIRE(sizes[order_[i]] == 1, "the order of the mesh names every axis with more than one rank");
  auto const ranks = sizes.product(dense_axes);
  P3D_REQUIRE(ranks <= std::numeric_limits<int>::max(), "the number of ranks is an int");
  num_ranks_ = static_cast<int>(ranks);
  auto atoms = config::refine(sizes, order_);
  if (!atoms) {
    base::refuse({.expected = fmt::format("sizes of {} and {} with a common refinement",
                                          config::names(stage_axes, ", "), config::names(expert_axes, ", ")),
                  .found = "none",
                  .where = "[parallel]",
                  .fix = config::nearest_layouts(sizes, order_)});
  }
  atoms_ = *std::move(atoms);
  sizes_ = config::with_rest(sizes);
}

PerAxis RankGrid::coordinates(int rank) const {
  auto c = PerAxis::all(0), step = PerAxis::all(1);
  // A rank is a number whose digits are the coordinates along the atoms, fastest first.
  for (auto const& atom : atoms_) {
    int const digit = rank / atom.stride % atom.size;
    for (auto a : all_axes) {
      if (!atom.axes.has(a)) continue;
      c[a] += digit * step[a];
      step[a] *= atom.size;
    }
  }
  return c;
}

int RankGrid::rank(PerAxis const& coordinates) const {
  auto left = coordinates;
  int r = 0;
  for (auto const& atom : atoms_) {
    for (auto a : order_) {
      if (!atom.axes.has(a)) continue;
      r += left[a] % atom.size * atom.stride;
      left[a] /= atom.size;
    }
  }
  return r;
}

int RankGrid::group_size(AxisSet axes) const {
  int size = 1;
  for (auto const& atom : atoms_) size *= atom.axes.meets(axes) ? atom.size : 1;
  return size;
}

int RankGrid::place(AxisSet axes, int rank) const {
  int out = 0, step = 1;
  for (auto const& atom : atoms_) {
    if (!atom.axes.meets(axes)) continue;
    out += rank / atom.stride % atom.size * step;
    step *= atom.size;
  }
  return out;
}

int RankGrid::member(AxisSet axes, int rank, int place) const {
  for (auto const& atom : atoms_) {
    if (!atom.axes.meets(axes)) continue;
    rank += (place % atom.size - rank / atom.stride % atom.size) * atom.stride;
    place /= atom.size;
  }
  return rank;
}

std::vector<int> RankGrid::group(AxisSet axes, int rank) const {
  std::vector<int> out(static_cast<std::size_t>(group_size(axes)));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = member(axes, rank, static_cast<int>(i));
  return out;
}

int RankGrid::first_of_group(AxisSet axes, int number) const {
  int rank = 0;
  for (auto const& atom : atoms_) {
    if (atom.axes.meets(axes)) continue;
    rank += number % atom.size * atom.stride;
    number /= atom.size;
  }
  return rank;
}

int RankGrid::number_of_group(AxisSet axes, int rank) const {
  int out = 0, step = 1;
  for (auto const& atom : atoms_) {
    if (atom.axes.meets(axes)) continue;
    out += rank / atom.stride % atom.size * step;
    step *= atom.size;
  }
  return out;
}

std::vector<std::vector<int>> RankGrid::groups(AxisSet axes) const {
  std::vector<std::vector<int>> out;
  out.reserve(static_cast<std::size_t>(num_groups(axes)));
  for (int g = 0; g < num_groups(axes); ++g) out.push_back(group(axes, first_of_group(axes, g)));
  return out;
}

Range padded_shard(std::int64_t size, int parts, int part) {
  P3D_REQUIRE(parts >= 1 && part >= 0 && part < parts, "the part exists");
  std::int64_t const piece = (size + parts - 1) / parts;
  return {piece * part, piece * (part + 1)};
}

Range even_share(std::int64_t size, int parts, int part) {
  P3D_REQUIRE(parts >= 1 && part >= 0 && part < parts, "the part exists");
  auto const bound = [&](std::int64_t r) { return size / parts * r + size % parts * r / parts; };
  return {bound(part), bound(part + 1)};
}

}  // namespace p3d::layout
