// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/recompute.hpp>

#include <algorithm>

namespace p3d::plan {

layout::StageRecompute stage_recompute(RecomputeChoice const& choice, layout::StageMap const& stages, int stage) {
  auto out = layout::no_recompute(stages, stage);
  auto place = stages.layers(stage).begin - stages.uncut_begin(stage);
  for (auto& l : out.layers) {
    if (place++ < choice.full_layers)
      l.full = true;
    else
      l = {.norm = choice.ops.norm, .activation = choice.ops.activation, .attention = choice.ops.attention};
  }
  return out;
}

double recompute_cost_per_token(config::Config const& config, layout::StageRecompute const& stage,
                                std::int64_t first_layer, Keys keys) {
  constexpr double norm = 50, activation = 70;
  auto const& m = config.model;
  double sum = recompute_flops_per_token(config, stage, first_layer, keys);
  for (int i = 0; i < stage.num_layers(); ++i) {
    auto const& l = stage.layer(i);
    if (l.norm || l.full) sum += norm * 2 * static_cast<double>(m.hidden);
    if (l.activation || l.full) sum += activation * static_cast<double>(m.active_ffn(first_layer + i));
  }
  return sum;
}

std::optional<RecomputeChoice> choose_recompute(int most_layers, std::int64_t budget,
                                                std::function<std::int64_t(RecomputeChoice const&)> const& bytes,
                                                std::function<double(RecomputeChoice const&)> const& cost) {
  std::optional<RecomputeChoice> best;
  std::int64_t best_bytes = 0;
  double best_cost = 0.0;
  auto const consider = [&](RecomputeChoice const& choice) {
    auto const b = bytes(choice);
    if (b > budget) return false;
    double const c = cost(choice);
    if (!best || c < best_cost || (c == best_cost && b < best_bytes)) {
      best = choice;
      best_bytes = b;
      best_cost = c;
    }
    return true;
  };
  for (int subset = 0; subset < 8; ++subset) {
    RecomputeChoice choice;
    choice.ops = {.norm = (subset & 1) != 0, .activation = (subset & 2) != 0, .attention = (subset & 4) != 0};
    if (consider(choice)) continue;  // more full layers only cost more
    // The fewest full layers that fit.
    int low = 1, high = most_layers;
    while (low < high) {
      choice.full_layers = low + (high - low) / 2;
      if (bytes(choice) <= budget)
        high = choice.full_layers;
      else
        low = choice.full_layers + 1;
    }
    choice.full_layers = low;
    if (low <= most_layers) consider(choice);
  }
  return best;
}

}  // namespace p3d::plan
