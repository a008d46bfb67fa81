// SPDX-License-Identifier: Apache-2.0
// Bytes of the state of a rank: numbers of elements from the parameter table times bytes of their types. A stage has
// its whole weights and gradients all the time, or owns a share of them and has the whole ones in a pool while the
// program needs them (memory.shard). An example: memory.shard = "optimizer" over 4 replicas, AdamW in fp32, divides the
// 8 bytes of moments of each parameter by 4 and leaves the 4 of its weight and of its gradient whole.
#include <p3d/plan/memory.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/memory_sizes.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/optimizer_state.hpp>
#include <p3d/layout/block_sizes.hpp>
#include <p3d/layout/context.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace p3d::plan {

namespace {
std::int64_t arrays_of_state(config::Config const& config) {
  return std::ssize(config::state_of(config.optimizer_with_versions()).arrays);
}
}  // namespace

std::string no_fused_attention(config::Config const& c) {
  if (!config::is_16bit(c.run.precision)) return "it takes 16 bits alone";
  if (c.model.dropout > 0) return "it draws no dropout as p3d does";
  if (layout::context_division(c).ring() > 1) return "a ring of ranks adds up parts of attention";
  return "";
}

std::int64_t fused_attention_bytes(config::Config const& c) {
  if (c.linalg.attention == config::AttentionKernel::gemms || !no_fused_attention(c).empty()) return 0;
  auto const a = layout::block_sizes(c).attention;
  // A fixed order of sums takes memory in the backward pass, which GEMMs compute where cp divides the samples.
  bool const in_order = c.run.deterministic && layout::context_division(c).cp == 1;
  return base::fused_attention_bytes(a.samples, a.place_tokens, a.place_heads, a.place_kv_heads,
                                     std::max(a.head_dim, a.value_dim), in_order);
}

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

std::int64_t state_bytes(config::Config const& config) {
  auto const bytes = type_bytes(config);
  std::int64_t sum = 0;
  for (auto const& array : config::state_of(config.optimizer_with_versions()).arrays)
    sum += array.weights ? bytes.master : bytes.moment;
  return sum;
}

layout::ElementBytes element_bytes(config::Config const& config) {
  auto const bytes = type_bytes(config);
  return {bytes.storage, bytes.master};
}

StateParts offloaded_parts(config::Config const& config) {
  bool const optimizer = config.memory.offload_optimizer != config::OffloadTo::none;
  bool const values = config.memory.offloads_parameters(), has_master = type_bytes(config).has_master;
  return {.master = has_master ? optimizer : values,
          .arrays = optimizer ? config::state_of(config.optimizer_with_versions()).arrays.size() : 0,
          .values = has_master && values};
}

std::int64_t staged_elements(std::int64_t longest) { return std::min(longest, base::offloaded_piece); }

std::int64_t staging_bytes(config::Config const& config, std::int64_t longest) {
  auto const parts = offloaded_parts(config);
  auto const bytes = type_bytes(config);
  // Offloaded state has the type of master weights.
  auto const arrays = static_cast<std::int64_t>(parts.arrays) + (parts.master ? 1 : 0);
  auto const each = arrays * bytes.master + (parts.values ? bytes.storage : 0);
  return 3 * staged_elements(longest) * each;
}

std::int64_t fetch_bytes(config::Config const& config, std::int64_t longest) {
  return 2 * longest * type_bytes(config).storage;
}

bool reduces_narrow(config::Config const& config) {
  return config.parallel.product(config::token_axes) > 1 && config.precision.reduction == config::Precision::bf16 &&
         config.precision.gradients != config::Precision::bf16;
}

layout::BucketRule bucket_rule(config::Config const& config) {
  auto const bytes = config.comm.bucket_mb * 1024.0 * 1024.0;
  return {std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / type_bytes(config).gradient),
          static_cast<int>(config.comm.bucket_layers)};
}

layout::Compression stage_compression(config::Config const& config, layout::StageParams const& params) {
  return layout::make_compression(config, params, type_bytes(config).master);
}

layout::StateShard state_shard(config::Config const& config, layout::StageParams const& params,
                               layout::PerAxis const& here) {
  auto const& m = config.memory;
  P3D_REQUIRE(config::state_of(config.optimizer_with_versions()).ownership == config::Ownership::runs,
              "a rank owns runs of elements");
  layout::RankGrid const grid(config.parallel, layout::parse_order(config.parallel.order));
  return layout::make_shard(
      params, bucket_rule(config), grid, here,
      {.divided = m.divides(), .over = m.shard_over, .whole_gradients = m.shard < config::Shard::gradients});
}

std::int64_t owned_elements(config::Config const& config, layout::StageParams const& params,
                            layout::PerAxis const& here) {
  return config.memory.divides() ? state_shard(config, params, here).owned_size : params.flat_size();
}

namespace {

/// Bytes of the copy from which a checkpoint is written: the largest share of each parameter. It is at most one row of
/// each parameter more than any rank copies.
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
  return (1 + arrays_of_state(config)) * numbers * element;
}

}  // namespace

MemoryPrediction predict_state_memory(config::Config const& config, layout::ParamTable const& table,
                                      layout::StageMap const& stages, int pipeline_rank, StatePools const& pools) {
  using config::Shard;
  layout::PerAxis const sizes = config.parallel, here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  auto const divides = config.memory.shard;
  std::int64_t numbers = 0, owned = 0, compressed = 0;
  for (int stage : stages.stages_of(pipeline_rank)) {
    layout::StageParams const params(table, stages, stage, sizes, here);
    numbers += params.flat_size();
    owned += owned_elements(config, params, here);
    if (config.compresses()) {
      auto const compression = stage_compression(config, params);
      compressed += compression.buffer_bytes() + compression.state_bytes();
    }
  }
  auto const bytes = type_bytes(config);
  MemoryPrediction m;
  auto const& memory = config.memory;
  auto const own_values = owned * bytes.storage;
  if (memory.offloads_parameters()) {
    m.params = pools.weights.bytes;
  } else {
    m.params = divides == Shard::parameters ? own_values + pools.weights.bytes : numbers * bytes.storage;
  }
  m.grads = divides >= Shard::gradients ? owned * bytes.gradient + pools.gradients.bytes : numbers * bytes.gradient;
  m.grads += compressed;
  if (reduces_narrow(config)) m.grads += numbers * config::bytes_of(config.precision.reduction);
  if (bytes.has_master) m.optimizer += owned * bytes.master;
  auto const arrays = arrays_of_state(config);
  auto const state = state_bytes(config);
  m.optimizer += owned * state;
  if (config.optimizer.post_validation) m.optimizer += owned * (bytes.master + state);
  if (memory.offload_optimizer != config::OffloadTo::none) std::swap(m.optimizer, m.offloaded);
  if (memory.offload_optimizer == config::OffloadTo::host) m.offloaded_to_host += m.offloaded;
  if (memory.offloads_parameters()) m.offloaded += own_values;
  if (memory.offload_parameters == config::OffloadTo::host) m.offloaded_to_host += own_values;
  if (config.checkpoint.between_steps() && config.checkpoint.async)
    m.checkpoint_copy = divides == Shard::none ? checkpoint_copy(config, table, stages, pipeline_rank)
                                               : (1 + arrays) * owned * bytes.master;
  return m;
}

void add_stream_memory(config::Config const& config, layout::ParamTable const& table, layout::StageMap const& stages,
                       int pipeline_rank, std::vector<int> const& ahead, MemoryPrediction& m) {
  layout::PerAxis const sizes = config.parallel, here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  auto const bytes = type_bytes(config);
  for (int stage : stages.stages_of(pipeline_rank)) {
    auto const numbers = layout::StageParams(table, stages, stage, sizes, here).flat_size();
    if (!config.mixes_delays()) m.grads += numbers * bytes.gradient;
    if (bytes.has_master) m.params += ahead.at(static_cast<std::size_t>(stage)) * numbers * bytes.storage;
  }
}

StatePools make_state_pools(config::Config const& config, layout::ParamTable const& table,
                            layout::StageMap const& stages, int pipeline_rank, schedule::Program const& training,
                            std::vector<schedule::Program const*> const& others) {
  using config::Shard;
  StatePools pools;
  auto const& memory = config.memory;
  bool const gradients_come = memory.shard >= Shard::gradients;
  layout::PerAxis const sizes = config.parallel, here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  auto const& mine = stages.stages_of(pipeline_rank);
  auto const bytes = type_bytes(config);
  std::map<int, std::int64_t> weights, gradients;
  for (int stage : mine) {
    auto const numbers = layout::StageParams(table, stages, stage, sizes, here).flat_size();
    weights[stage] = numbers * bytes.storage;
    gradients[stage] = numbers * bytes.gradient;
  }
  if (gradients_come)
    pools.gradients = make_pool(mine, gradients, {schedule::whole_gradients(training, pipeline_rank)});
  if (!memory.moves_weights()) return pools;
  std::vector<std::vector<std::vector<schedule::LiveInterval>>> live{schedule::whole_weights(training, pipeline_rank)};
  for (auto const* program : others) live.push_back(schedule::whole_weights(*program, pipeline_rank));
  pools.weights = make_pool(mine, weights, live);
  return pools;
}

std::string format(std::vector<MemoryPrediction> const& by_pipeline_rank) {
  constexpr char const* row = "{:<8} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n";
  auto out = fmt::format(row, "pp rank", "weights", "gradients", "optimizer", "activations", "workspace", "libraries",
                         "total");
  auto bytes = [](std::int64_t n) { return base::human_bytes(static_cast<double>(n)); };
  for (std::size_t first = 0; first < by_pipeline_rank.size();) {
    auto const& m = by_pipeline_rank[first];
    auto last = first;
    while (last + 1 < by_pipeline_rank.size() && by_pipeline_rank[last + 1] == m) ++last;
    auto const who = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    out += fmt::format(row, who, bytes(m.params), bytes(m.grads), bytes(m.optimizer), bytes(m.activations),
                       bytes(m.workspace + m.panels + m.staging), bytes(m.libraries), bytes(m.total()));
    first = last + 1;
  }
  return out;
}

}  // namespace p3d::plan
