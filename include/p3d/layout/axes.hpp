// SPDX-License-Identifier: Apache-2.0
#pragma once
// Axes of the mesh, coordinates, and the map between ranks and coordinates. Pure integers: works for any number of
// ranks.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

/// An axis of the mesh. Context and expert parallelism will be second factorisations of the data axis, not members
/// here.
enum class Axis : int { dp = 0, tp = 1, pp = 2 };
inline constexpr std::array<Axis, 3> all_axes{Axis::dp, Axis::tp, Axis::pp};
char const* name(Axis axis);

/// A set of axes as a bit mask.
class AxisSet {
public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (auto a : axes) bits_ |= 1u << static_cast<unsigned>(a);
  }
  constexpr bool has(Axis a) const { return (bits_ >> static_cast<unsigned>(a)) & 1u; }
  constexpr bool empty() const { return bits_ == 0; }
  /// Set difference.
  constexpr AxisSet minus(AxisSet other) const {
    AxisSet out;
    out.bits_ = bits_ & ~other.bits_;
    return out;
  }
  constexpr bool operator==(AxisSet const&) const = default;

private:
  unsigned bits_ = 0;
};

/// One number per axis: either the sizes of the mesh or the coordinates of a rank.
struct PerAxis {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int& operator[](Axis a) { return a == Axis::dp ? dp : a == Axis::tp ? tp : pp; }
  int operator[](Axis a) const { return a == Axis::dp ? dp : a == Axis::tp ? tp : pp; }
  bool operator==(PerAxis const&) const = default;
  int product() const { return dp * tp * pp; }
};

/// "tp-pp-dp" -> {tp, pp, dp}, fastest (neighbouring ranks) first. Throws base::Error unless it is a permutation.
std::array<Axis, 3> parse_order(std::string_view order);

/// The mesh as arithmetic: rank <-> coordinates for sizes and an order.
class RankGrid {
public:
  RankGrid(PerAxis sizes, std::array<Axis, 3> order_fastest_first);
  int num_ranks() const { return sizes_.product(); }
  PerAxis sizes() const { return sizes_; }
  std::array<Axis, 3> order() const { return order_; }
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
  std::array<Axis, 3> order_;
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
