// SPDX-License-Identifier: Apache-2.0
// The rules of the mesh: sizes of the axes, their order, the experts' factorisation.
// Most errors here are a number of ranks that does not fit the sizes. Example: 6 ranks with tp = 4; the error says that
// the number must be divisible by tp, and the fix offers 4 or 8 ranks, or a tp that divides 6.

#include "config/divide.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>
#include <p3d/config/refinement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace p3d::config {

namespace {

/// How to start p3d with one of these numbers of ranks.
std::string start(std::vector<std::int64_t> const& ranks) {
  return fmt::format("start {0} {2} (srun -n {1} p3d ... or mpiexec -n {1} p3d ...)", one_of(ranks), ranks.back(),
                     ranks.back() == 1 ? "rank" : "ranks");
}

/// The keys of the axes that were written in the input.
std::vector<std::string_view> given(Check const& c, std::vector<Axis> const& axes) {
  std::vector<std::string_view> out;
  for (auto a : axes) {
    if (c.sources.given(row_of(a).key)) out.emplace_back(row_of(a).key);
  }
  return out;
}

/// The dense axes as messages show them: first the one that follows from the others; no axis that p3d does not train
/// with yet, unless it was set.
std::vector<Axis> shown(Check const& c, bool with_dp) {
  std::vector<Axis> out;
  if (with_dp) out.push_back(Axis::dp);
  for (auto a : dense_axes.minus({Axis::dp}).list()) {
    if (row_of(a).trained || c.sources.given(row_of(a).key)) out.push_back(a);
  }
  return out;
}

/// A product of axes as a text, "dp x tp x pp", and with sizes "dp 2 x tp 2 x pp 1".
std::string factors(std::vector<Axis> const& axes, PerAxis const* sizes = nullptr) {
  std::vector<std::string> parts;
  for (auto a : axes) parts.push_back(sizes ? fmt::format("{} {}", name(a), (*sizes)[a]) : name(a));
  return base::join(parts, " x ");
}

/// Advice to choose axes whose product divides the number of ranks.
std::string smaller_groups(Check const& c, std::int64_t below) {
  auto const axes = shown(c, false);
  std::vector<std::string> keys;
  for (auto a : axes) keys.emplace_back(row_of(a).key);
  return fmt::format("choose {} so that {} divides {}: a product of {}", base::join(keys, " and "), factors(axes),
                     c.num_ranks, one_of(nearest_divisors(below, c.num_ranks)));
}

/// Checks whether the sizes make a mesh of the ranks; false when they do not, or are not known.
bool check_sizes(Check const& c) {
  auto const others = dense_axes.minus({Axis::dp});
  if (!c.known(axis_keys(others))) return false;
  auto const& p = c.config.parallel;
  auto const below = p.product(others);
  if (!c.known({"parallel.dp"})) {
    // Otherwise it is open: it would follow from the others, but they do not let it.
    if (c.sources.lost("parallel.dp")) return false;
    auto const axes = shown(c, false);
    c.error(given(c, axes), fmt::format("a number of ranks divisible by {}; the quotient is dp", factors(axes)),
            fmt::format("{} = {}, but the run has {}", factors(axes, &p), below, base::counted(c.num_ranks, "rank")),
            start(nearest_multiples(c.num_ranks, below)) + ", or " + smaller_groups(c, below));
    return false;
  }
  auto const axes = shown(c, true);
  auto const product = p.product(dense_axes);
  auto const product_text = fmt::format("{} = {}", factors(axes, &p), base::counted(product, "rank"));
  auto const where = given(c, axes);
  if (product > std::numeric_limits<int>::max()) {
    c.error(where, "at most 2147483647 ranks", product_text, "choose smaller sizes");
    return false;
  }
  if (c.num_ranks > 0 && product != c.num_ranks) {
    auto fix = start({product});
    if (c.num_ranks % below == 0) {
      fix += fmt::format(", or set parallel.dp to {} (without parallel.dp it follows the number of ranks)",
                         c.num_ranks / below);
    } else {
      fix += ", or remove parallel.dp and " + smaller_groups(c, below);
    }
    c.error(where, factors(axes) + " equal to the number of ranks",
            fmt::format("{}, but the run has {}", product_text, c.num_ranks), fix);
    return false;
  }
  return true;
}

/// The order must name the axes with more than one rank. Axes of one rank have no place in the mesh: any order may
/// leave them out.
bool check_order(Check const& c) {
  if (!c.known({"parallel.order"})) return false;
  auto const& p = c.config.parallel;
  auto order = read_order(p.order).axes;
  std::vector<std::string_view> keys{"parallel.order"};
  std::vector<std::string> missing;
  for (auto const& row : axis_table) {
    if (!row.has_key || !c.known({row.key}) || p[row.axis] == 1) continue;
    if (std::find(order.begin(), order.end(), row.place) != order.end()) continue;
    keys.emplace_back(row.key);
    missing.push_back(row.axis == row.place
                          ? fmt::format("{}, which has {} ranks", row.name, p[row.axis])
                          : fmt::format("{}, whose place {} = {} takes", name(row.place), row.name, p[row.axis]));
    // The order in the fix is like the default one: dp outermost, cp next to tp.
    auto const behind = [&](Axis a) { return a < row.place; };
    order.insert(std::find_if(order.rbegin(), order.rend(), behind).base(), row.place);
  }
  if (missing.empty()) return true;
  c.error(keys, "an order of the mesh that names every axis with more than one rank",
          fmt::format("\"{}\" without {}", p.order, base::join(missing, " and without ")),
          fmt::format("set parallel.order to \"{}\"", to_text(order)));
  return false;
}

/// True when there are experts for the axes that divide them.
bool check_has_experts(Check const& c) {
  if (!c.known({"model.moe.experts"}) || c.config.model.moe.on()) return true;
  std::vector<std::string_view> keys;
  std::vector<std::string> wanted, found;
  for (auto const& row : axis_table) {
    if (row.kind != AxisKind::expert || !row.has_key || !c.known({row.key}) || c.config.parallel[row.axis] == 1)
      continue;
    keys.emplace_back(row.key);
    wanted.push_back(fmt::format("{} = 1", row.key));
    found.push_back(fmt::format("{} {}", row.name, c.config.parallel[row.axis]));
  }
  if (keys.empty()) return true;
  auto const fix = fmt::format(
      "set {}, or model.moe.experts for a model of experts; p3d mesh shows the ranks of such a "
      "layout without one",
      base::join(wanted, " and "));
  keys.emplace_back("model.moe.experts");
  c.error(keys, base::join(wanted, " and ") + ": a dense model has no experts to divide", base::join(found), fix);
  return false;
}

/// The experts' factorisation of a stage's ranks and the dense one must have a common refinement.
void check_experts(Check const& c, Purpose purpose) {
  auto const& p = c.config.parallel;
  if (!c.known(axis_keys(expert_axes)) || p.product(stage_axes) > std::numeric_limits<int>::max()) return;
  auto const order = complete_order(read_order(p.order).axes);
  if (refine(p, order)) return;
  auto const dense = stage_order(AxisKind::dense, order), experts = stage_order(AxisKind::expert, order);
  auto const sizes = with_rest(p);
  auto const rest = expert_axes.minus(key_axes);
  std::vector<std::string_view> where = given(c, key_axes.minus(Axis::pp).list());
  if (c.sources.given("parallel.order")) where.emplace_back("parallel.order");
  auto found = fmt::format("{} and {}", factors(dense, &sizes), factors(experts, &sizes));
  if (sizes.product(rest) == 0)
    found = fmt::format("{} = {} ranks of a stage, for {}", factors(dense, &sizes), sizes.product(stage_axes),
                        factors(expert_axes.minus(rest).list(), &sizes));
  c.error(where,
          fmt::format("{} and {} that count the ranks of a stage in common steps: their partial products, sorted, "
                      "divide each other",
                      factors(dense), factors(experts)),
          found, nearest_layouts(sizes, order, purpose == Purpose::training ? experts_fit(c) : SizesFit{}));
}

}  // namespace

void check_mesh(Check const& c, Purpose purpose) {
  bool const sizes = check_sizes(c);
  if (purpose == Purpose::training && !check_has_experts(c)) return;
  if (check_order(c) && sizes) check_experts(c, purpose);
}

}  // namespace p3d::config
