// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/model_cost.hpp>

#include <p3d/config/config.hpp>
#include <p3d/layout/context.hpp>

#include <algorithm>

namespace p3d::plan {

std::int64_t weights_of_layer(config::Config const& config, std::int64_t layer) {
  auto const& m = config.model;
  auto const router = m.has_experts(layer) ? m.moe.experts + (m.moe.shared_gate ? 1 : 0) : 0;
  return m.attention_weights() + m.hidden * (router + m.mlp_matrices() * m.active_ffn(layer));
}

std::int64_t matmul_weights(config::Config const& config) {
  auto const& m = config.model;
  auto sum = m.vocab_size * m.hidden + m.mtp.depth * weights_beside_layer(config);
  for (std::int64_t l = 0; l < m.all_layers(); ++l) sum += weights_of_layer(config, l);
  return sum;
}

std::int64_t weights_beside_layer(config::Config const& config) {
  auto const& m = config.model;
  return m.hidden * (2 * m.hidden + m.vocab_size);
}

layout::Range layers_in_training(config::Config const& config, layout::StageMap const& stages, int stage) {
  auto range = stages.layers(stage);
  if (stages.is_last(stage)) range.end += config.model.mtp.depth;
  return range;
}

std::int64_t active_parameters(config::Config const& config, layout::ParamTable const& table) {
  auto const& m = config.model;
  std::int64_t with_experts = 0;
  for (std::int64_t l = 0; l < m.all_layers(); ++l) with_experts += m.has_experts(l) ? 1 : 0;
  auto const idle = with_experts * (m.moe.experts - m.moe.top_k);
  auto const biases = m.moe.bias ? (m.mlp_matrices() - 1) * m.moe.ffn + m.hidden : 0;
  return table.num_parameters() - idle * (m.mlp_matrices() * m.hidden * m.moe.ffn + biases);
}

double stream_numbers(config::Config const& config) {
  auto const& m = config.model;
  // Two sums read two rows and write one. A norm in front adds the row that it writes, and the first one reads its row;
  // a norm behind reads one and writes two.
  double const sums = 6, before = m.norms_before() ? 4 : 0, after = m.norms_after() ? 6 : 0;
  return (sums + before + after) * static_cast<double>(m.hidden);
}

double attention_copies(config::Config const& config) {
  auto const& m = config.model;
  // Sinks read and write the output of attention once more.
  auto const sinks = m.attention_sinks ? 2 * m.heads * m.value_dim() : 0;
  if (m.mla.on()) {
    // Keys and values are written by a linear and copied to where attention reads them.
    auto const copied = m.heads * (m.mla.kv_head_dim() + m.head_dim() + m.value_dim());
    return static_cast<double>(copied + sinks);
  }
  auto const norms = m.qk_norm == config::QkNorm::none ? 0 : 3 * (m.heads + m.kv_heads) * m.head_dim();
  return static_cast<double>(norms + sinks);
}

double latent_norms(config::Config const& config) {
  auto const& mla = config.model.mla;
  return mla.on() ? static_cast<double>(3 * (mla.q_lora_rank + mla.kv_lora_rank)) : 0;
}

double keys_per_query(config::Config const& config, std::int64_t layer, Keys keys) {
  auto const s = config.model.seq_len, window = config.model.window_of(layer);
  if (keys == Keys::seen) return layout::mean_keys(s, window);
  return static_cast<double>(window > 0 ? std::min(window, s) : s);
}

double flops_per_token(config::Config const& config) {
  auto const& m = config.model;
  double keys = 0.0;
  for (std::int64_t l = 0; l < m.all_layers(); ++l) keys += keys_per_query(config, l, Keys::all);
  // Backward takes twice the operations of forward.
  return 6.0 * static_cast<double>(matmul_weights(config)) + 3.0 * m.operations_per_key() * keys;
}

double model_flops_per_step(config::Config const& config) {
  return flops_per_token(config) * static_cast<double>(config.batch.global) * static_cast<double>(config.model.seq_len);
}

double recompute_flops_per_token(config::Config const& config, layout::StageRecompute const& stage,
                                 std::int64_t first_layer, Keys keys) {
  auto const& m = config.model;
  double const each_key = m.operations_per_key();
  auto const out = m.heads * m.value_dim() * m.hidden;
  double sum = 0.0;
  for (int l = 0; l < stage.num_layers(); ++l) {
    auto const& layer = stage.layer(l);
    if (layer.attention || layer.full) sum += each_key * keys_per_query(config, first_layer + l, keys);
    if (!layer.full) continue;
    auto weights = weights_of_layer(config, first_layer + l) - (stage.keeps_sums ? out : 0);
    if (!stage.remakes_branches(l, m.norms_after())) weights -= m.hidden * m.active_ffn(first_layer + l);
    sum += 2.0 * static_cast<double>(weights);
  }
  return sum;
}

}  // namespace p3d::plan
