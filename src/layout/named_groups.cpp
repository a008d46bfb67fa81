// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/named_groups.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <cstdint>

namespace p3d::layout {

namespace {

std::vector<NamedGroup> make_named_groups() {
  std::vector<NamedGroup> groups;
  groups.reserve(all_axes.size() + 9);
  for (auto a : all_axes) groups.push_back({name(a), a});
  groups.push_back({"mp", dense_axes.minus(token_axes)});
  groups.push_back({"dp_cp", token_axes});
  groups.push_back({"tp_cp", sample_axes});
  groups.push_back({"tp_dp", stage_axes.minus(Axis::cp)});
  groups.push_back({"tp_dp_cp", stage_axes});
  groups.push_back({"ep_tp", expert_axes.minus(expert_token_axes)});
  groups.push_back({"ep_dp", Axis::edp});
  groups.push_back({"tp_ep_mp", expert_axes.minus(Axis::edp)});
  groups.push_back({"tp_ep_pp", expert_axes.minus(Axis::edp).plus(Axis::pp)});
  return groups;
}

/// `ranks` divided by the product of the sizes along some axes. Throws base::Error where that leaves a remainder.
int rest(int ranks, char const* what, PerAxis const& sizes, AxisSet axes) {
  std::int64_t product = 1;
  bool positive = true;
  std::vector<std::string> factors;
  for (auto a : axes.list()) {
    positive = positive && sizes[a] > 0;
    factors.push_back(fmt::format("{} = {}", name(a), sizes[a]));
    // A product above the number of ranks is wrong already; going on could overflow.
    if (product <= ranks) product *= sizes[a];
  }
  if (positive && product <= ranks && ranks % product == 0) return static_cast<int>(ranks / product);
  throw base::Error({.expected = fmt::format("sizes of at least 1 whose product divides {} {}", ranks, what),
                     .found = base::join(factors, ", "),
                     .where = "the sizes of parallel groups",
                     .fix = "change these sizes, or start another number of ranks"});
}

}  // namespace

std::vector<NamedGroup> const& named_groups() {
  static std::vector<NamedGroup> const groups = make_named_groups();
  return groups;
}

AxisSet group_axes(std::string_view name) {
  std::vector<std::string> known;
  for (auto const& group : named_groups()) {
    if (group.name == name) return group.axes;
    known.push_back(group.name);
  }
  throw base::Error({.expected = "a group: " + base::join(known),
                     .found = fmt::format("'{}'", name),
                     .where = "the name of a parallel group",
                     .fix = "use one of these names; p3d mesh --csv lists the ranks of each"});
}

RankGrid grid_of(PerAxis sizes, int num_ranks, std::string_view order) {
  sizes.dp = rest(num_ranks, "ranks", sizes, dense_axes.minus(Axis::dp));
  // The product divides num_ranks, so it is an int.
  sizes.edp = rest(static_cast<int>(sizes.product(stage_axes)), "ranks of a pipeline stage", sizes,
                   expert_axes.minus(Axis::edp));
  return RankGrid(sizes, order.empty() ? dense_axes.list() : parse_order(order));
}

}  // namespace p3d::layout
