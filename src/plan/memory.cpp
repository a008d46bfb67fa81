// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/memory.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::plan {

TypeBytes type_bytes(config::Config const& config) {
  auto const precision = config.run.precision;
  auto const wide =
      config::is_16bit(precision) ? config::bytes_of(config::Precision::fp32) : config::bytes_of(precision);
  bool const narrow_gradients = config.precision.gradients == config::Precision::bf16;
  bool const narrow_moments = config.precision.moments == config::Precision::bf16;
  return {.storage = config::bytes_of(precision),
          .gradient = narrow_gradients ? config::bytes_of(config::Precision::bf16) : wide,
          .master = wide,
          .moment = narrow_moments ? config::bytes_of(config::Precision::bf16) : wide,
          .has_master = config::is_16bit(precision)};
}

bool reduces_narrow(config::Config const& config) {
  return config.parallel.dp > 1 && config.precision.reduction == config::Precision::bf16 &&
         config.precision.gradients != config::Precision::bf16;
}

namespace {

/// At most one row of each parameter more than any rank copies.
std::int64_t checkpoint_copy(config::Config const& config, layout::ParamTable const& table,
                             layout::StageMap const& stages, int pipeline_rank) {
  layout::PerAxis const sizes = config.parallel, here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  auto const element = type_bytes(config).master;
  std::int64_t numbers = 0;
  for (int stage : stages.stages_of(pipeline_rank)) {
    layout::StageParams const params(table, stages, stage, sizes, here);
    for (auto const& item : params.items()) {
      if (item.spec->tied && stage > 0) continue;
      auto const replicas = static_cast<int>(sizes.product(item.spec->replica_axes()));
      auto const rows = [&](int r) {
        return layout::replica_share(item.valid_rows, item.cols, element, r, replicas).size();
      };
      numbers += std::max(rows(0), rows(replicas - 1)) * item.cols;
    }
  }
  int const arrays = config.optimizer.type == config::OptimizerType::adamw ? 3 : 1;
  return arrays * numbers * element;
}

}  // namespace

MemoryPrediction predict_state_memory(config::Config const& config, layout::ParamTable const& table,
                                      layout::StageMap const& stages, int pipeline_rank) {
  layout::PerAxis const sizes = config.parallel, here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  std::int64_t numbers = 0;
  for (int stage : stages.stages_of(pipeline_rank)) {
    numbers += layout::StageParams(table, stages, stage, sizes, here).flat_size();
  }
  auto const bytes = type_bytes(config);
  MemoryPrediction m;
  m.params = numbers * bytes.storage;
  m.grads = numbers * bytes.gradient;
  if (reduces_narrow(config)) m.grads += numbers * config::bytes_of(config.precision.reduction);
  if (bytes.has_master) m.optimizer += numbers * bytes.master;
  if (config.optimizer.type == config::OptimizerType::adamw) m.optimizer += 2 * numbers * bytes.moment;
  if (config.checkpoint.on() && config.checkpoint.async)
    m.checkpoint_copy = checkpoint_copy(config, table, stages, pipeline_rank);
  return m;
}

std::string format(std::vector<MemoryPrediction> const& by_pipeline_rank) {
  constexpr char const* row = "{:<8} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n";
  auto out = fmt::format(row, "pp rank", "weights", "gradients", "optimizer", "activations", "workspace", "total");
  auto bytes = [](std::int64_t n) { return base::human_bytes(static_cast<double>(n)); };
  for (std::size_t first = 0; first < by_pipeline_rank.size();) {
    auto const& m = by_pipeline_rank[first];
    auto last = first;
    while (last + 1 < by_pipeline_rank.size() && by_pipeline_rank[last + 1] == m) ++last;
    auto const who = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    out += fmt::format(row, who, bytes(m.params), bytes(m.grads), bytes(m.optimizer), bytes(m.activations),
                       bytes(m.workspace + m.panels), bytes(m.total()));
    first = last + 1;
  }
  return out;
}

}  // namespace p3d::plan
