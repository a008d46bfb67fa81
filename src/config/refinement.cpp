// SPDX-License-Identifier: Apache-2.0
// The cuts of both factorisations are put into one sorted set, as partial products; neighbours in it make an atom when
// the smaller divides the larger. Example: dense 4 x 4 cuts at 4 and 16, experts 8 x 2 at 8 and 16; the set 1, 4, 8, 16
// gives atoms 4, 2, 2.
#include <p3d/config/refinement.hpp>

#include "config/divide.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

namespace p3d::config {

namespace {

/// The partial products of a factorisation before and behind an axis, [begin, end): ranks of a stage that differ along
/// the axis alone are begin apart.
struct Span {
  Axis axis;
  std::int64_t begin = 1, end = 1;
};

/// The spans of axes, fastest first.
std::vector<Span> spans(PerAxis const& sizes, std::vector<Axis> const& order) {
  std::vector<Span> out;
  std::int64_t product = 1;
  for (auto a : order) {
    out.push_back({a, product, product * sizes[a]});
    product *= sizes[a];
  }
  return out;
}

}  // namespace

PerAxis with_rest(PerAxis sizes) {
  auto const rest = expert_axes.minus(key_axes), given = expert_axes.minus(rest);
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  auto const ranks = sizes.product(stage_axes), used = sizes.product(given);
  for (auto a : rest.list()) sizes[a] = ranks % used == 0 && ranks / used <= most ? static_cast<int>(ranks / used) : 0;
  return sizes;
}

std::vector<Axis> stage_order(AxisKind kind, std::vector<Axis> const& order) {
  std::vector<Axis> out;
  for (auto place : order) {
    for (auto const& row : axis_table) {
      if (row.kind == kind && row.place == place && row.axis != Axis::pp) out.push_back(row.axis);
    }
  }
  return out;
}

std::optional<std::vector<Atom>> refine(PerAxis const& given, std::vector<Axis> const& order) {
  auto const sizes = with_rest(given);
  if (sizes.product(expert_axes) == 0) return {};
  auto const dense = spans(sizes, stage_order(AxisKind::dense, order));
  auto const experts = spans(sizes, stage_order(AxisKind::expert, order));
  // The cuts are the partial products of both factorisations. A cut that does not divide the next one leaves no
  // refinement.
  std::set<std::int64_t> cuts;
  for (auto const& span : dense) cuts.insert(span.end);
  for (auto const& span : experts) cuts.insert(span.end);
  for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
    if (*std::next(cut) % *cut != 0) return {};
  }

  std::vector<Atom> atoms;
  int stride = 1;
  auto const add = [&](std::string name, std::int64_t size, AxisSet axes) {
    atoms.push_back({std::move(name), static_cast<int>(size), stride, axes});
    stride *= static_cast<int>(size);
  };
  for (auto a : order) {
    auto const span = std::find_if(dense.begin(), dense.end(), [&](auto const& s) { return s.axis == a; });
    if (span == dense.end() || span->begin == span->end) {  // pp, or an axis of one rank
      add(name(a), sizes[a], a);
      continue;
    }
    // An axis that no cut divides is one atom, and has its own name without a number.
    bool const whole = cuts.upper_bound(span->begin) == cuts.find(span->end);
    auto begin = span->begin;
    for (int part = 0; begin < span->end; ++part) {
      auto const end = *cuts.upper_bound(begin);
      AxisSet axes = a;
      for (auto const& e : experts) {
        if (e.begin <= begin && end <= e.end) axes = axes.plus(e.axis);
      }
      add(whole ? std::string(name(a)) : fmt::format("{}{}", name(a), part), end / begin, axes);
      begin = end;
    }
  }
  return atoms;
}

std::vector<int> nearest_sizes(Axis axis, PerAxis sizes, std::vector<Axis> const& order, SizesFit const& fit) {
  // Divisors of the stage's ranks come in pairs, of which the nearest that fit are kept.
  int const asked = sizes[axis];
  auto const ranks = sizes.product(stage_axes);
  int below = 0, above = 0;
  auto const consider = [&](std::int64_t size) {
    auto const n = static_cast<int>(size);
    if ((n <= asked && n <= below) || (n > asked && above != 0 && n >= above)) return;
    sizes[axis] = n;
    if ((!fit || fit(sizes)) && refine(sizes, order)) (n <= asked ? below : above) = n;
  };
  for (std::int64_t d = 1; d * d <= ranks; ++d) {
    if (ranks % d != 0) continue;
    consider(d);
    consider(ranks / d);
  }
  std::vector<int> out;
  if (below > 0) out.push_back(below);
  if (above > 0) out.push_back(above);
  return out;
}

std::string nearest_layouts(PerAxis const& sizes, std::vector<Axis> const& order, SizesFit const& fit) {
  auto const experts = expert_axes.minus(expert_axes.minus(key_axes)).list();
  std::vector<std::string> ways;
  for (auto a : experts) {
    std::vector<std::int64_t> numbers;
    for (int n : nearest_sizes(a, sizes, order, fit)) numbers.push_back(n);
    if (!numbers.empty()) ways.push_back(fmt::format("{} to {}", row_of(a).key, one_of(numbers)));
  }
  if (!ways.empty()) return "set " + base::join(ways, ", or ");
  // No size is near when one axis alone changes: so the other axis gets 1, and this one a size as near as can be.
  for (auto a : experts) {
    auto others = sizes;
    std::vector<std::string> ones;
    for (auto b : experts) {
      if (b == a) continue;
      others[b] = 1;
      ones.push_back(fmt::format("{} to 1", row_of(b).key));
    }
    std::vector<std::int64_t> numbers;
    for (int n : nearest_sizes(a, others, order, fit)) numbers.push_back(n);
    if (!numbers.empty())
      ways.push_back(fmt::format("{} and {} to {}", base::join(ones), row_of(a).key, one_of(numbers)));
  }
  return "set " + base::join(ways, ", or ");
}

}  // namespace p3d::config
