// SPDX-License-Identifier: Apache-2.0
#pragma once
// The map between ranks and coordinates of the mesh, for the axes that p3d/config/axes.hpp lists. Pure integers: works
// for any number of ranks. Example: the order "tp-pp-dp" with sizes 2, 2, 2 gives rank 5 the coordinates tp 1, pp 0,
// dp 1.

#include <p3d/config/axes.hpp>
#include <p3d/config/refinement.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

using config::all_axes;
using config::Axis;
using config::AxisSet;
using config::dense_axes;
using config::expert_axes;
using config::expert_token_axes;
using config::name;
using config::PerAxis;
using config::sample_axes;
using config::stage_axes;
using config::token_axes;

/// Reads an order: "tp-pp-dp" -> {tp, pp, dp}, fastest (neighbouring ranks) first. Throws base::Error unless it names
/// axes of the mesh, each at most once.
std::vector<Axis> parse_order(std::string_view order);

/// The mesh as arithmetic: the map between rank and coordinates for sizes and an order. The mesh is a product of atoms
/// (p3d/config/refinement.hpp), and every axis, of the dense weights and of the experts, is a set of them.
class RankGrid {
public:
  /// The order may leave out axes of size 1. Throws base::Error (bad_input) when the experts' factorisation and the
  /// dense one have no common refinement.
  RankGrid(PerAxis const& sizes, std::vector<Axis> const& order_fastest_first);
  int num_ranks() const { return num_ranks_; }
  PerAxis const& sizes() const { return sizes_; }
  /// All dense axes, fastest first.
  std::vector<Axis> const& order() const { return order_; }
  /// The dimensions of the mesh, fastest first.
  std::vector<config::Atom> const& atoms() const { return atoms_; }
  /// The coordinates of a rank along every axis.
  PerAxis coordinates(int rank) const;
  /// The rank with these coordinates along the dense axes; the others are not read.
  int rank(PerAxis const& coordinates) const;

  /// The size of a rank's group along some axes. The group is the ranks that differ from the rank only along the atoms
  /// of these axes, in ascending order, which for one axis is the order of the coordinate.
  int group_size(AxisSet axes) const;
  /// The group of a rank along some axes, in ascending order.
  std::vector<int> group(AxisSet axes, int rank) const;
  /// The place of a rank in its group along some axes.
  int place(AxisSet axes, int rank) const;
  /// The rank at a place of the group that `rank` is in.
  int member(AxisSet axes, int rank, int place) const;
  /// The number of groups along some axes.
  int num_groups(AxisSet axes) const { return num_ranks_ / group_size(axes); }
  /// The first rank of a group. Groups are numbered in the order of their first ranks.
  int first_of_group(AxisSet axes, int number) const;
  /// The number of the group that a rank is in.
  int number_of_group(AxisSet axes, int rank) const;
  /// All groups, by number.
  std::vector<std::vector<int>> groups(AxisSet axes) const;

private:
  PerAxis sizes_;
  std::vector<Axis> order_;
  std::vector<config::Atom> atoms_;
  int num_ranks_;
};

/// A half-open range of indices.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(Range const&) const = default;
};

/// Part `part` of `size` elements that are padded up to a multiple of `parts` and cut into equal pieces.
Range padded_shard(std::int64_t size, int parts, int part);

/// Part `part` of `size` elements cut into `parts` pieces that differ by at most one; nothing is padded.
Range even_share(std::int64_t size, int parts, int part);

}  // namespace p3d::layout
