// SPDX-License-Identifier: Apache-2.0
// The updates by which gradients of layers are late: the list of pipeline.delays, its rules, and the list that a
// PipeDream pipeline has by itself. A stage that has p - 1 - s stages behind it does the forwards of so many
// microbatches before the backward of the oldest one, so with m microbatches in a step its weights have had
// ceil((p - 1 - s) / m) updates in between (PipeDream, Narayanan et al. 2019, section 3.3, has m = 1). Example: 4
// stages and m = 1 give 3, 2, 1 and 0; m = 2 gives 2, 1, 1 and 0.
#include "config/divide.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace p3d::config {

std::int64_t Config::delay_of(std::int64_t layer) const {
  auto const& delays = pipeline.delays;
  if (delays.empty()) return optimizer.delay;
  auto const parts = static_cast<std::int64_t>(delays.size());
  auto const at = std::clamp<std::int64_t>(layer, 0, model.layers - 1) * parts / model.layers;
  return delays[static_cast<std::size_t>(at)];
}

bool Config::mixes_delays() const {
  auto const& delays = pipeline.delays;
  return std::any_of(delays.begin(), delays.end(), [&](int d) { return d != delays.front(); });
}

bool natural_delays(Config& config) {
  auto const& p = config.pipeline;
  if (p.layer_split == LayerSplit::cost) return false;
  std::int64_t const stages = config.parallel.pp, m = std::max<std::int64_t>(1, config.batch.microbatches);
  auto layers = even_parts(config.model.layers, stages);
  if (p.layer_split == LayerSplit::list) layers.assign(p.layers_per_stage.begin(), p.layers_per_stage.end());
  auto& out = config.pipeline.delays;
  out.clear();
  for (std::size_t s = 0; s < layers.size(); ++s) {
    auto const behind = std::max<std::int64_t>(0, stages - 1 - static_cast<std::int64_t>(s));
    out.insert(out.end(), static_cast<std::size_t>(std::max<std::int64_t>(0, layers[s])),
               static_cast<int>((behind + m - 1) / m));
  }
  return true;
}

void check_delays(Check const& c) {
  constexpr auto key = "pipeline.delays";
  auto const& config = c.config;
  auto const& delays = config.pipeline.delays;
  bool const own = c.known({"pipeline.schedule"}) && config.pipeline.schedule == "pipedream";
  if (own && c.known({"pipeline.layers_per_stage"}) && config.pipeline.layer_split == LayerSplit::cost &&
      !c.sources.given(key)) {
    c.error({"pipeline.layers_per_stage", "pipeline.schedule"},
            "stages whose layers are known without the model's cost (schedule \"pipedream\" has delays by stage)",
            "layers_per_stage = \"cost\"",
            "set pipeline.layers_per_stage to \"even\" or a list, or give pipeline.delays");
    return;
  }
  if (!c.known({key, "model.layers"}) || delays.empty()) return;
  auto const n = static_cast<std::int64_t>(delays.size());
  if (config.model.layers % n != 0) {
    c.error({key, "model.layers"}, "a list whose length divides the number of layers: each number is of an equal part",
            fmt::format("{} numbers, {} layers", n, config.model.layers),
            fmt::format("give {} numbers", one_of(nearest_divisors(n, config.model.layers))));
    return;
  }
  auto const most = *std::max_element(delays.begin(), delays.end());
  if (most > Optimizer::most_delay)
    c.error({key, "parallel.pp", "batch.microbatches"},
            fmt::format("gradients that are late by at most {} updates", Optimizer::most_delay),
            fmt::format("{}", most), "raise batch.microbatches, or lower parallel.pp");
  if (c.known({"optimizer.delay"}) && config.optimizer.delay != most)
    c.error({"optimizer.delay", key}, fmt::format("{}, the largest of pipeline.delays", most),
            fmt::format("{}", config.optimizer.delay), "leave optimizer.delay out, or remove pipeline.delays");
  auto const first = delays.front(), last = delays.back();
  if (first == last) return;
  if (c.known({"model.tied_embeddings"}) && config.model.tied_embeddings)
    c.error({"model.tied_embeddings", key}, "one delay for both ends of a tied embedding",
            fmt::format("{} for the embedding, {} for the head", first, last),
            "set model.tied_embeddings to false, or give the first and the last layers the same delay");
  if (c.known({"model.mtp.depth"}) && config.model.mtp.on())
    c.error({"model.mtp.depth", key}, "one delay for the embedding and for multi-token prediction, which reads it",
            fmt::format("{} for the embedding, {} for the last layers", first, last),
            "set model.mtp.depth to 0, or give the first and the last layers the same delay");
}

}  // namespace p3d::config
