// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/communicators.hpp>

#include <p3d/layout/compression.hpp>

#include <algorithm>

namespace p3d::layout {

AxisSet gather_axes(ParamSpec const& spec, bool divided) {
  auto const axes = spec.repeated_axes().plus(spec.split_axes()).plus(Axis::pp);
  return divided ? axes.plus(spec.gradient_axes()) : axes;
}

AxisSet vocabulary_axes(PerAxis const& sizes) { return sizes.tp > 1 ? AxisSet{Axis::tp, Axis::pp} : AxisSet{Axis::pp}; }

AxisSet expert_exchange_axes(PerAxis const& sizes) {
  AxisSet out;
  for (auto a : AxisSet{Axis::etp, Axis::ep}.list()) {
    if (sizes[a] > 1) out = out.plus(a);
  }
  return out;
}

namespace {
bool divides_sequences(PerAxis const& sizes) { return sizes.cp > 1; }
}  // namespace

std::vector<AxisSet> communicator_sets(ParamTable const& table, PerAxis const& sizes, bool divided, bool compressed) {
  std::vector<AxisSet> out{Axis::tp, Axis::pp};
  if (divides_sequences(sizes))  // attention; counts of targets
    for (auto a : token_axes.list()) out.emplace_back(a);
  if (std::any_of(table.specs().begin(), table.specs().end(), [](auto const& spec) { return spec.over_pipeline(); }))
    out.push_back(vocabulary_axes(sizes));
  if (auto const experts = expert_exchange_axes(sizes); !experts.empty()) out.push_back(experts);
  for (auto const& spec : table.specs()) {
    auto const holders = divided ? spec.repeated_axes() : spec.replica_axes();
    std::vector<AxisSet> sets{spec.gradient_axes(), holders, gather_axes(spec, divided)};
    if (compressed) {
      // Sums before dp; replicas of what a worker remembers; ranks with other rows or columns, and with the same ones.
      auto const rows = cutting_axes(spec, 0);
      for (auto set : {spec.gradient_axes().minus(Axis::dp), spec.replica_axes().minus(Axis::dp), rows,
                       cutting_axes(spec, 1), spec.replica_axes().plus(rows)})
        sets.push_back(set);
    }
    for (auto set : sets) {
      for (auto a : set.list()) {
        if (sizes[a] == 1) set = set.minus(a);
      }
      if (std::find(out.begin(), out.end(), set) == out.end()) out.push_back(set);
    }
  }
  return out;
}

}  // namespace p3d::layout
