// SPDX-License-Identifier: Apache-2.0
// The updates by which gradients of layers are late: the list of pipeline.delays, its rules, and what a PipeDream
// pipeline has by itself. A stage that has p - 1 - s stages behind it does the forwards of so many microbatches before
// the backward of the oldest one, so with m microbatches in a step its weights have had ceil((p - 1 - s) / m) updates
// in between (PipeDream, Narayanan et al. 2019, section 3.3, has m = 1). Example: 4 stages and m = 1 give 3, 2, 1 and
// 0; m = 2 gives 2, 1, 1 and 0. These follow from other keys each time they are asked for, so that an input with other
// stages has other ones.
#include "config/divide.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace p3d::config {

namespace {

std::int64_t delay_of_stage(Config const& c, std::int64_t stage) {
  auto const m = std::max<std::int64_t>(1, c.batch.microbatches);
  return (c.parallel.pp - 1 - stage + m - 1) / m;
}

/// The stage of a layer; the layers are dealt evenly or by a list.
std::int64_t stage_of(Config const& c, std::int64_t layer) {
  std::int64_t const stages = c.parallel.pp;
  if (layer < 0) return 0;
  auto dealt = even_parts(c.model.layers, stages);
  if (auto const& p = c.pipeline; p.layer_split == LayerSplit::list)
    dealt.assign(p.layers_per_stage.begin(), p.layers_per_stage.end());
  std::int64_t end = 0;
  for (std::int64_t s = 0; s < std::min<std::int64_t>(stages, std::ssize(dealt)); ++s) {
    end += dealt[static_cast<std::size_t>(s)];
    if (layer < end) return s;
  }
  return stages - 1;
}

}  // namespace

bool delays_follow_stages(Config const& c) { return c.pipeline.delays.empty() && c.pipeline.schedule == "pipedream"; }

std::int64_t Config::delay_of(std::int64_t layer) const {
  if (delays_follow_stages(*this)) return delay_of_stage(*this, stage_of(*this, layer));
  auto const& delays = pipeline.delays;
  if (delays.empty()) return optimizer.delay;
  auto const parts = static_cast<std::int64_t>(delays.size());
  auto const at = std::clamp<std::int64_t>(layer, 0, model.layers - 1) * parts / model.layers;
  return delays[static_cast<std::size_t>(at)];
}

std::int64_t Config::latest_delay() const {
  if (delays_follow_stages(*this)) return delay_of_stage(*this, 0);
  auto const& delays = pipeline.delays;
  return delays.empty() ? optimizer.delay : *std::max_element(delays.begin(), delays.end());
}

bool Config::mixes_delays() const {
  if (delays_follow_stages(*this)) return parallel.pp > 1;
  auto const& delays = pipeline.delays;
  return std::any_of(delays.begin(), delays.end(), [&](int d) { return d != delays.front(); });
}

Optimizer Config::optimizer_with_versions() const {
  auto out = optimizer;
  out.delay = std::min(latest_delay(), Optimizer::most_delay);  // more is refused
  return out;
}

std::string delays_text(Config const& c) {
  auto const layers = c.model.layers;
  std::vector<std::int64_t> shortest;
  for (std::int64_t n = 1; n <= layers; ++n) {
    if (layers % n != 0) continue;
    shortest.clear();
    for (std::int64_t part = 0; part < n; ++part) shortest.push_back(c.delay_of(part * layers / n));
    bool same = true;
    for (std::int64_t l = 0; l < layers; ++l)
      same = same && c.delay_of(l) == shortest[static_cast<std::size_t>(l * n / layers)];
    if (same) break;
  }
  return fmt::format("[{}]", fmt::join(shortest, ", "));
}

void check_delays(Check const& c) {
  constexpr auto key = "pipeline.delays", schedule = "pipeline.schedule";
  auto const& config = c.config;
  auto const& delays = config.pipeline.delays;
  if (!c.known({key, schedule, "model.layers", "parallel.pp", "batch.microbatches"})) return;
  bool const own = delays_follow_stages(config);
  if (!own && delays.empty()) return;
  std::string_view const cause = own ? schedule : key;
  auto const n = static_cast<std::int64_t>(delays.size());
  if (own && c.known({"pipeline.layers_per_stage"}) && config.pipeline.layer_split == LayerSplit::cost) {
    c.error({"pipeline.layers_per_stage", schedule},
            "stages whose layers are known without the model's cost (schedule \"pipedream\" has delays by stage)",
            "layers_per_stage = \"cost\"",
            "set pipeline.layers_per_stage to \"even\" or a list, or give pipeline.delays");
    return;
  }
  auto const first = config.delay_of(-1), last = config.delay_of(config.model.layers);
  if (own && (first != config.delay_of(0) || last != config.delay_of(config.model.layers - 1))) {
    c.error({"pipeline.layers_per_stage", schedule},
            "a layer on the first and on the last stage (schedule \"pipedream\": the embedding is as late as the first "
            "layer, the head as the last)",
            fmt::format("a stage without layers, {} late, which no list of pipeline.delays can say",
                        base::counted(first != config.delay_of(0) ? first : last, "update")),
            "give both ends a layer, or set pipeline.schedule to \"1f1b\" and pipeline.delays");
    return;
  }
  if (!own && config.model.layers % n != 0) {
    c.error({key, "model.layers"}, "a list whose length divides the number of layers: each number is of an equal part",
            fmt::format("{} numbers, {} layers", n, config.model.layers),
            fmt::format("give {} numbers", one_of(nearest_divisors(n, config.model.layers))));
    return;
  }
  if (config.latest_delay() > Optimizer::most_delay) {
    c.error({cause, "parallel.pp", "batch.microbatches"},
            fmt::format("gradients that are late by at most {} updates", Optimizer::most_delay),
            fmt::format("{} on the first stage", config.latest_delay()),
            "raise batch.microbatches, or lower parallel.pp");
    return;
  }
  if (c.known({"optimizer.delay"}) && config.optimizer.delay != 0)
    c.error({"optimizer.delay", cause}, "no delay for all layers where each has its own",
            fmt::format("{}", config.optimizer.delay), fmt::format("remove optimizer.delay, or {}", cause));
  if (first == last) return;
  if (c.known({"model.tied_embeddings"}) && config.model.tied_embeddings)
    c.error(
        {"model.tied_embeddings", cause}, "one delay for both ends of a tied embedding",
        fmt::format("{} for the embedding, {} for the head", first, last),
        "set model.tied_embeddings to false, or give the first and the last layers the same delay (pipeline.delays)");
  if (c.known({"model.mtp.depth"}) && config.model.mtp.on())
    c.error({"model.mtp.depth", cause}, "one delay for the embedding and for multi-token prediction, which reads it",
            fmt::format("{} for the embedding, {} for the last layers", first, last),
            "set model.mtp.depth to 0, or give the first and the last layers the same delay (pipeline.delays)");
}

}  // namespace p3d::config
