#include <p3d/plan/model_cost.hpp>

#include <p3d/config/config.hpp>

namespace p3d::plan {

std::int64_t weights_per_layer(config::Config const& config) {
  auto const& m = config.model;
  auto const q = m.heads * m.head_dim(), kv = m.kv_heads * m.head_dim();
  auto const mlp_matrices = m.activation == config::Activation::swiglu ? 3 : 2;
  return m.hidden * (2 * q + 2 * kv) + mlp_matrices * m.hidden * m.ffn;
}

std::int64_t matmul_weights(config::Config const& config) {
  auto const& m = config.model;
  return m.layers * weights_per_layer(config) + m.vocab_size * m.hidden;
}

FlopsPerToken flops_per_token(config::Config const& config) {
  auto const& m = config.model;
  auto const weights = 6.0 * static_cast<double>(matmul_weights(config));
  auto const layers = static_cast<double>(m.layers), sequence = static_cast<double>(m.seq_len);
  // Scores and weighted sum: 2 * 2 operations per head dimension and seen token, three times with backward.
  double const attention = 12.0 * layers * static_cast<double>(m.heads * m.head_dim());
  FlopsPerToken f;
  f.model = weights + attention * sequence;
  f.causal = weights + attention * (sequence + 1.0) / 2.0;
  f.full_recompute =
      f.model + 2.0 * layers * static_cast<double>(weights_per_layer(config)) + attention / 3.0 * sequence;
  return f;
}

double model_flops_per_step(config::Config const& config) {
  return flops_per_token(config).model * static_cast<double>(config.batch.global) *
         static_cast<double>(config.model.seq_len);
}

std::vector<StageParameters> stage_parameters(layout::ParamTable const& table, layout::StageMap const& stages,
                                              layout::PerAxis sizes) {
  std::vector<StageParameters> out;
  for (int stage = 0; stage < stages.num_stages(); ++stage) {
    StageParameters row;
    row.stage = stage;
    // Shards are padded to equal size, so the first rank of a tensor group stands for all.
    layout::StageParams const local(table, stages, stage, sizes, {0, 0, stages.pipeline_rank(stage)});
    row.per_rank = local.flat_size();
    for (auto const& p : local.items()) row.parameters += p.spec->size();
    out.push_back(row);
  }
  return out;
}

}  // namespace p3d::plan
