// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/layout_choice.hpp>

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/config/cluster.hpp>
#include <p3d/plan/kernel_generation.hpp>
#include <p3d/plan/search.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace p3d::plan {
namespace {

constexpr char const* key = "parallel.layout";

PlannedInput refused(std::string expected, std::string found, std::string fix) {
  PlannedInput out;
  out.result.errors.push_back(
      {.key = key, .where = key, .expected = std::move(expected), .found = std::move(found), .fix = std::move(fix)});
  return out;
}

}  // namespace

PlannedInput parse_planned_file(std::string const& path, std::vector<std::string> const& overrides, int ranks) {
  PlannedInput out{config::parse_file(path, overrides, ranks), ""};
  // Sizes that are still open need not fit the number of ranks.
  auto const open = out.result.config ? out.result : config::parse_file(path, overrides, 0);
  if (!open.config || open.config->parallel.layout != config::LayoutChoice::automatic) return out;
  auto const& wanted = *open.config;
  if (wanted.plan.cluster.empty())
    return refused("plan.cluster, the machine by which the layout is chosen", "none",
                   "name a file, such as inputs/clusters/dgx-h100.toml, or give the sizes of the layout");
  if (ranks == 0) return refused("a number of ranks for which a layout is chosen", "none", "add --ranks N");
  auto cluster = config::parse_cluster_file(wanted.plan.cluster);
  if (!cluster.cluster) return {{.config = {}, .errors = std::move(cluster.errors)}, ""};
  auto const& kernels = kernels_of(base::to_string(wanted.plan.kernels), "plan.kernels", cluster.cluster->kernels);
  try {
    auto const found =
        require_layouts(wanted, *cluster.cluster, kernels, {.ranks = ranks, .fixed = wanted.plan.given.keys, .top = 1});
    auto const& best = found.layouts.front();
    auto all = overrides;
    for (auto const& word : layout_overrides(best.config)) all.push_back(word);
    all.emplace_back("parallel.layout=given");
    out.result = config::parse_file(path, all, ranks);
    out.note =
        fmt::format("Layout chosen for {} ranks of {}: {}; predicted {:.4g} s a step ({:.4g} to {:.4g})", ranks,
                    cluster.cluster->name, layout_of(best.config), best.time.seconds(), best.time.low, best.time.high);
  } catch (base::Error const& e) {
    return refused(e.text().expected, e.text().found, e.text().fix);
  }
  return out;
}

std::string grade_step(config::Config const& config, double measured) {
  if (config.plan.cluster.empty() || measured <= 0) return "";
  if (!not_predicted(config).empty()) return "";  // the step did other work
  auto const cluster = config::parse_cluster_file(config.plan.cluster);
  if (!cluster.cluster) return "";
  try {
    auto const& kernels = kernels_of(base::to_string(config.plan.kernels), "plan.kernels", cluster.cluster->kernels);
    auto const time = predict_step(config, *cluster.cluster, kernels);
    double const off = 100 * (measured / time.seconds() - 1);
    return fmt::format("Predicted {:.4g} s a step ({:.4g} to {:.4g}): measured {:.4g} s, {:.1f} % {}", time.seconds(),
                       time.low, time.high, measured, std::abs(off), off < 0 ? "less" : "more");
  } catch (base::Error const&) {
    return "";  // the cluster has no rate for the precision
  }
}

}  // namespace p3d::plan
