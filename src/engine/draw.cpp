// SPDX-License-Identifier: Apache-2.0
#include "draw.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace p3d::engine {

namespace {

/// Sets to 0 what top_k and then top_p do not leave: top_p is a share of what top_k has left. Of the order only its
/// beginning is made.
void narrow(std::vector<double>& p, double sum, SampleOptions const& o) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const before = [&](std::size_t a, std::size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
  std::size_t const most = o.top_k > 0 ? std::min(p.size(), static_cast<std::size_t>(o.top_k)) : p.size();
  if (most < p.size()) {
    auto const end = order.begin() + static_cast<std::ptrdiff_t>(most);
    std::nth_element(order.begin(), end, order.end(), before);
    sum = 0.0;
    for (auto i = order.begin(); i != end; ++i) sum += p[*i];
    order.resize(most);
  }
  std::size_t kept = 0, sorted = 0;
  double reached = 0.0;
  // The one that crosses the border of top_p still counts.
  while (kept < most && (kept == 0 || o.top_p >= 1.0 || reached < o.top_p * sum)) {
    if (kept == sorted) {
      auto const end = std::min(most, std::max<std::size_t>(64, 2 * sorted));
      auto const at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
      std::partial_sort(at(sorted), at(end), order.end(), before);
      sorted = end;
    }
    reached += p[order[kept++]];
  }
  std::vector<double> left(p.size(), 0.0);
  for (std::size_t i = 0; i < kept; ++i) left[order[i]] = p[order[i]];
  p = std::move(left);
}

}  // namespace

int draw(std::span<double const> logits, SampleOptions const& o, double u) {
  auto const likeliest = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*likeliest) || std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x); }))
    throw base::Error(
        {.expected = "finite logits, to draw a token from them",
         .found = "NaN or infinity",
         .where = "the model's output",
         .fix = "use a checkpoint whose weights are finite, or run.precision = \"fp32\" where activations "
                "overflow"},
        base::ExitCode::not_finite);
  if (o.temperature <= 0.0) return static_cast<int>(likeliest - logits.begin());
  std::vector<double> p(logits.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp((logits[i] - *likeliest) / o.temperature);
  if (o.top_k > 0 || o.top_p < 1.0) {
    narrow(p, sum, o);
    sum = std::accumulate(p.begin(), p.end(), 0.0);
  }
  double reach = u * sum;
  for (std::size_t i = 0; i < p.size(); ++i) {
    reach -= p[i];
    if (p[i] > 0.0 && reach <= 0.0) return static_cast<int>(i);
  }
  return static_cast<int>(likeliest - logits.begin());
}

}  // namespace p3d::engine
