// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one table of axes. Everything else asks it: names, keys, help, the default order of the mesh, and which axes
// split the tokens. Nothing else lists axes (a lint test looks for such lists).
//
// An axis is a direction of the mesh of ranks. Example: on 8 ranks with tp = 2, pp = 2 and dp = 2, each rank has a
// coordinate of 0 or 1 along each of the three; ranks that differ along tp alone share the layers of a stage, ranks
// that differ along dp alone are replicas.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// The two ways in which the ranks are divided. Dense axes divide the ranks of the mesh. Expert axes divide the ranks
/// of one pipeline stage once more, for the weights of experts: their product is that of the dense axes without pp.
enum class AxisKind { dense, expert };

// The table has one row for each axis, the dense ones in the default order of the mesh: neighbouring ranks first. The
// columns are:
//   name, kind, the dense axis whose place in the order it takes,
//   it splits the tokens that the weights of its kind see, p3d trains with more than one rank along it, it has a key in
//   [parallel], default, help
#define P3D_AXES(ROW)                                                                                                 \
  ROW(tp, dense, tp, false, true, true, "1", "tensor-parallel size: each layer is split over so many ranks")          \
  ROW(cp, dense, cp, true, true, true, "1", "context-parallel size: the tokens of a sequence are split over so many") \
  ROW(pp, dense, pp, false, true, true, "1", "pipeline-parallel size: stages of consecutive layers")                  \
  ROW(dp, dense, dp, true, true, true, "ranks / (the other axes)", "data-parallel size: replicas of the model")       \
  ROW(etp, expert, tp, false, true, true, "1",                                                                        \
      "tensor-parallel size of experts: each expert (model.moe) is split over so many ranks")                         \
  ROW(ep, expert, dp, true, true, true, "1", "expert-parallel size: experts (model.moe) are dealt to so many ranks")  \
  ROW(edp, expert, dp, true, true, false, "ranks of a stage / (the other axes of experts)", "replicas of each expert")

#define P3D_AXIS(axis, ...) axis,
/// An axis of the mesh, in the order of the table.
enum class Axis : int { P3D_AXES(P3D_AXIS) };
#undef P3D_AXIS

/// A row of the table; P3D_AXES describes the columns.
struct AxisRow {
  Axis axis;
  char const* name;  ///< "tp"
  char const* key;   ///< "parallel.tp"
  AxisKind kind;
  Axis place;                ///< the dense axis whose place in the order of the mesh it takes
  bool splits_tokens;        ///< weights of its kind see different tokens on its ranks
  bool trained;              ///< p3d can train with more than one rank along it
  bool has_key;              ///< false: its size follows from the others
  char const* default_text;  ///< "1", or a text that says what the size follows from
  char const* help;
};

#define P3D_AXIS(axis, kind, place, splits_tokens, trained, has_key, default_text, help) \
  AxisRow{Axis::axis,    #axis,   "parallel." #axis, AxisKind::kind, Axis::place,        \
          splits_tokens, trained, has_key,           default_text,   help},
/// The rows, by Axis.
inline constexpr std::array axis_table{P3D_AXES(P3D_AXIS)};
#undef P3D_AXIS

#define P3D_AXIS(axis, ...) Axis::axis,
/// All axes, in the order of the table.
inline constexpr std::array all_axes{P3D_AXES(P3D_AXIS)};
#undef P3D_AXIS

constexpr AxisRow const& row_of(Axis axis) { return axis_table[static_cast<std::size_t>(axis)]; }
constexpr char const* name(Axis axis) { return row_of(axis).name; }

/// A set of axes as a bit mask.
class AxisSet {
public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(1u << static_cast<unsigned>(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (auto a : axes) bits_ |= 1u << static_cast<unsigned>(a);
  }
  constexpr bool has(Axis a) const { return (bits_ >> static_cast<unsigned>(a)) & 1u; }
  constexpr bool meets(AxisSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  /// Set difference.
  constexpr AxisSet minus(AxisSet other) const { return AxisSet(bits_ & ~other.bits_); }
  /// Union.
  constexpr AxisSet plus(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  /// The axes of the set, in the order of the table.
  std::vector<Axis> list() const {
    std::vector<Axis> out;
    for (auto a : all_axes) {
      if (has(a)) out.push_back(a);
    }
    return out;
  }
  constexpr bool operator==(AxisSet const&) const = default;

private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};

/// The axes for whose row `says` is true.
template <class Says>
constexpr AxisSet axes_where(Says const& says) {
  AxisSet out;
  for (auto const& row : axis_table) {
    if (says(row)) out = out.plus({row.axis});
  }
  return out;
}

/// The dense axes; the product of their sizes is the number of ranks.
inline constexpr AxisSet dense_axes = axes_where([](AxisRow const& row) { return row.kind == AxisKind::dense; });
/// The dense axes along which ranks see different tokens of a batch.
inline constexpr AxisSet token_axes =
    axes_where([](AxisRow const& row) { return row.kind == AxisKind::dense && row.splits_tokens; });
/// The axes of the ranks that share a pipeline stage: the dense ones without pp.
inline constexpr AxisSet stage_axes = dense_axes.minus({Axis::pp});
/// The axes along which the ranks of a stage work on the same samples.
inline constexpr AxisSet sample_axes = stage_axes.minus({Axis::dp});
/// The axes of the experts' weights; they divide the ranks of a pipeline stage, as stage_axes do.
inline constexpr AxisSet expert_axes = axes_where([](AxisRow const& row) { return row.kind == AxisKind::expert; });
/// The expert axes along which experts see different tokens. Ranks that share an expert along etp see the same ones.
inline constexpr AxisSet expert_token_axes =
    axes_where([](AxisRow const& row) { return row.kind == AxisKind::expert && row.splits_tokens; });
/// The axes whose size is a key of the input.
inline constexpr AxisSet key_axes = axes_where([](AxisRow const& row) { return row.has_key; });

/// One number per axis: either the sizes of the mesh or the coordinates of a rank.
struct PerAxis {
#define P3D_AXIS(axis, ...) int axis = 1;
  P3D_AXES(P3D_AXIS)
#undef P3D_AXIS

  /// A number for each axis, `number` for all.
  static PerAxis all(int number) {
    PerAxis out;
    for (auto a : all_axes) out[a] = number;
    return out;
  }
  /// A number for each axis: `number` for `axis`, 0 for the others.
  static PerAxis only(Axis axis, int number) {
    auto out = all(0);
    out[axis] = number;
    return out;
  }
  /// The member of an axis. It is a pointer to member, so that [parallel]'s keys can be read into it.
  using Member = int PerAxis::*;
  static constexpr Member member(Axis a) {
#define P3D_AXIS(axis, ...) &PerAxis::axis,
    constexpr std::array members{P3D_AXES(P3D_AXIS)};
#undef P3D_AXIS
    return members[static_cast<std::size_t>(a)];
  }
  int& operator[](Axis a) { return this->*member(a); }
  int operator[](Axis a) const { return this->*member(a); }
  bool operator==(PerAxis const&) const = default;
  /// The product of the numbers along these axes; at most 2^62, which stands for everything larger.
  std::int64_t product(AxisSet axes) const {
    constexpr std::int64_t most = std::int64_t{1} << 62;
    std::int64_t out = 1;
    for (auto a : axes.list()) {
      std::int64_t const factor = (*this)[a];
      out = factor > 0 && out > most / factor ? most : out * factor;
    }
    return out;
  }
  /// True when the numbers along these axes are all 0.
  bool zero(AxisSet axes) const {
    for (auto a : axes.list()) {
      if ((*this)[a] != 0) return false;
    }
    return true;
  }
};

/// The axes that people are shown. Expert axes are among them only where one that has a key has more than one rank.
inline AxisSet shown_axes(PerAxis const& sizes) {
  bool const experts = sizes.product(AxisSet(expert_axes).minus(expert_axes.minus(key_axes))) > 1;
  return experts ? dense_axes.plus(expert_axes) : dense_axes;
}

/// The names of the axes, joined by a separator, in the order of the table: "tp-pp-dp".
std::string names(AxisSet axes, std::string_view separator);

/// The text of parallel.order read as axes, fastest (neighbouring ranks) first.
struct MeshOrder {
  std::vector<Axis> axes;
  std::string error;  ///< the error of the text in words; "": none, and `axes` is right
};
/// Reads the names of different dense axes, joined by '-'.
MeshOrder read_order(std::string_view text);
/// The order, followed by the dense axes that it leaves out, in the order of the table.
std::vector<Axis> complete_order(std::vector<Axis> const& order);
/// The text of an order: "tp-pp-dp".
std::string to_text(std::vector<Axis> const& order);

}  // namespace p3d::config
