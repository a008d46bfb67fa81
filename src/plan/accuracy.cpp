// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/accuracy.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/median.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace p3d::plan {
namespace {

double relative_error(double predicted, double measured) { return std::abs(predicted / measured - 1); }

/// The number below which a share of the sorted numbers lies, linear between neighbours.
double quantile(std::vector<double> const& sorted, double share) {
  double const place = share * static_cast<double>(sorted.size() - 1);
  auto const below = static_cast<std::size_t>(place);
  auto const above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double mean(std::vector<double> const& numbers) {
  double sum = 0;
  for (double x : numbers) sum += x;
  return numbers.empty() ? 0 : sum / static_cast<double>(numbers.size());
}

}  // namespace

Accuracy accuracy(std::span<Graded const> rows) {
  Accuracy out;
  if (rows.empty()) return out;
  std::vector<double> errors, signs;
  double within = 0, covered = 0;
  for (auto const& r : rows) {
    P3D_REQUIRE(r.measured > 0 && r.predicted > 0, "graded numbers are positive");
    errors.push_back(relative_error(r.predicted, r.measured));
    signs.push_back(r.predicted / r.measured - 1);
    within += errors.back() <= 0.1 ? 1 : 0;
    covered += r.low <= r.measured && r.measured <= r.high ? 1 : 0;
  }
  std::sort(errors.begin(), errors.end());
  auto const n = static_cast<double>(rows.size());
  return {.rows = static_cast<int>(rows.size()),
          .mean = mean(errors),
          .median = quantile(errors, 0.5),
          .percentile = quantile(errors, 0.9),
          .worst = errors.back(),
          .bias = mean(signs),
          .within = within / n,
          .coverage = covered / n};
}

double kendall_tau(std::span<double const> a, std::span<double const> b) {
  P3D_REQUIRE(a.size() == b.size(), "tau is of pairs");
  auto const sign = [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; };
  double sum = 0, of_a = 0, of_b = 0;  // of all pairs, and of those that are no ties in a or in b
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      double const x = sign(a[i] - a[j]), y = sign(b[i] - b[j]);
      sum += x * y;
      of_a += x * x;
      of_b += y * y;
    }
  return of_a > 0 && of_b > 0 ? sum / std::sqrt(of_a * of_b) : 0;
}

std::vector<Choice> choices(std::span<Graded const> rows) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Graded const*>> problems;
  for (auto const& r : rows) {
    auto& those = problems[r.problem];
    if (those.empty()) order.push_back(r.problem);
    those.push_back(&r);
  }
  std::vector<Choice> out;
  for (auto const& problem : order) {
    auto& those = problems[problem];
    if (those.size() < 3) continue;
    std::vector<double> measured, predicted;
    for (auto const* r : those) {
      measured.push_back(r->measured);
      predicted.push_back(r->predicted);
    }
    std::stable_sort(those.begin(), those.end(),
                     [](auto const* x, auto const* y) { return x->predicted < y->predicted; });
    double const best = *std::min_element(measured.begin(), measured.end());
    double const of_three = std::min({those[0]->measured, those[1]->measured, those[2]->measured});
    out.push_back({.problem = problem,
                   .layouts = static_cast<int>(those.size()),
                   .tau = kendall_tau(measured, predicted),
                   .regret = those[0]->measured / best - 1,
                   .regret_of_three = of_three / best - 1});
  }
  return out;
}

Baselines baselines(std::span<Graded const> rows) {
  std::vector<double> of_medians, of_operations, rates;
  for (auto const& r : rows)
    if (r.operations > 0) rates.push_back(r.operations / r.measured);
  double const rate = rates.empty() ? 0 : base::median(rates);
  for (auto const& r : rows) {
    std::vector<double> same, others;
    for (auto const& other : rows) {
      if (&other == &r) continue;
      others.push_back(other.measured);
      if (other.problem == r.problem) same.push_back(other.measured);
    }
    auto const& known = same.empty() ? others : same;
    if (!known.empty()) of_medians.push_back(relative_error(base::median(known), r.measured));
    if (r.operations > 0) of_operations.push_back(relative_error(r.operations / rate, r.measured));
  }
  return {.median = mean(of_medians), .operations = mean(of_operations)};
}

}  // namespace p3d::plan
