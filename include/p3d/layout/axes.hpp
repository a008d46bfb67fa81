// SPDX-License-Identifier: Apache-2.0
#pragma once
// The map between ranks and coordinates of the mesh. Pure integers: works for any number of ranks. The axes themselves
// are listed in p3d/config/axes.hpp.

#include <p3d/config/axes.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

using config::all_axes;
using config::Axis;
using config::AxisSet;
using config::dense_axes;
using config::name;
using config::PerAxis;
using config::stage_axes;
using config::token_axes;

/// "tp-pp-dp" -> {tp, pp, dp}, fastest (neighbouring ranks) first. Throws base::Error unless it names axes of the mesh,
/// each at most once.
std::vector<Axis> parse_order(std::string_view order);

/// The mesh as arithmetic: rank <-> coordinates for sizes and an order.
class RankGrid {
public:
  /// The order may leave out axes of size 1.
  RankGrid(PerAxis sizes, std::vector<Axis> const& order_fastest_first);
  int num_ranks() const { return static_cast<int>(sizes_.product(dense_axes)); }
  PerAxis sizes() const { return sizes_; }
  /// Every axis of the mesh.
  std::vector<Axis> const& order() const { return order_; }
  PerAxis coordinates(int rank) const;
  int rank(PerAxis coordinates) const;
  /// The ranks that differ from `rank` only along `axis`, in coordinate order.
  std::vector<int> group(Axis axis, int rank) const;
  int num_groups(Axis axis) const { return num_ranks() / sizes_[axis]; }
  /// The first rank of a group of an axis; groups are numbered in the order of their first ranks.
  int first_of_group(Axis axis, int number) const;
  /// All groups of an axis, each in coordinate order, ordered by their first rank.
  std::vector<std::vector<int>> groups(Axis axis) const;

private:
  PerAxis sizes_;
  std::vector<Axis> order_;
};

/// Half-open range of indices.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(Range const&) const = default;
};

/// Part `part` of `size` cut into `parts` equal pieces after padding `size` up to a multiple of `parts`.
Range padded_shard(std::int64_t size, int parts, int part);

}  // namespace p3d::layout
