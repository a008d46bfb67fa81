// SPDX-License-Identifier: Apache-2.0
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

double flops_per_token(config::Config const& config) {
  auto const& m = config.model;
  // Scores and weighted sum: 2 * 2 operations per head dimension and seen token, three times with backward.
  return 6.0 * static_cast<double>(matmul_weights(config)) + 12.0 * static_cast<double>(m.layers) *
                                                                 static_cast<double>(m.heads * m.head_dim()) *
                                                                 static_cast<double>(m.seq_len);
}

double model_flops_per_step(config::Config const& config) {
  return flops_per_token(config) * static_cast<double>(config.batch.global) * static_cast<double>(config.model.seq_len);
}

}  // namespace p3d::plan
