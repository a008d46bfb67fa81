// SPDX-License-Identifier: Apache-2.0
#include "plan/layer_linears.hpp"

#include <p3d/layout/context.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::plan {

namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

/// The linears of attention. Those that make latents are whole on each rank of tp, for its rows.
std::vector<Linear> attention_linears(config::Config const& c, double tokens) {
  auto const& m = c.model;
  double const tp = c.parallel.tp, width = real(m.hidden);
  auto const q = real(m.heads * m.head_dim()), kv = real(m.kv_heads * m.head_dim());
  Linear const out{width, real(m.heads * m.value_dim()) / tp, tokens};
  if (!m.mla.on()) return {{(q + 2 * kv) / tp, width, tokens}, out};
  return {{real(m.mla.latent()), width, tokens / (c.parallel.sequence ? tp : 1)},
          {q / tp, m.mla.q_lora_rank > 0 ? real(m.mla.q_lora_rank) : width, tokens},
          {real(m.heads * m.mla.kv_head_dim()) / tp, real(m.mla.kv_lora_rank), tokens},
          out};
}

}  // namespace

Linear expansions_of(config::Config const& c, double tokens) {
  auto const& m = c.model;
  auto const division = layout::context_division(c);
  double const members = division.all_to_all;
  return {.n = real(m.heads * m.mla.kv_head_dim()) / c.parallel.tp / members,
          .k = real(m.mla.kv_lora_rank),
          .rows = tokens * members,
          .count = division.latents ? division.ring() - 1.0 : 0};
}

std::vector<Linear> linears_of(config::Config const& c, std::int64_t layer, double tokens) {
  auto const& m = c.model;
  auto const& p = c.parallel;
  double const tp = p.tp, width = real(m.hidden), gates = m.gated() ? 2 : 1;
  auto out = attention_linears(c, tokens);
  auto const mlp = [&](double ffn, double rows, double count) {
    out.push_back({gates * ffn, width, rows, count});
    out.push_back({.n = width, .k = ffn, .rows = rows, .count = count, .ends_layer = true});
  };
  if (!m.has_experts(layer)) {
    mlp(real(m.ffn) / tp, tokens, 1);
    return out;
  }
  // Balanced experts: a rank gets as many rows as it gives.
  double const experts = std::floor(real(m.moe.experts) / p.ep);
  double const rows = tokens / tp * real(m.moe.top_k) * p.etp;
  mlp(real(m.moe.ffn) / p.etp, std::max(1.0, std::floor(rows / experts)), experts);
  if (m.moe.shared_ffn > 0) mlp(real(m.moe.shared_ffn) / tp, tokens, 1);
  out.push_back({real(m.moe.experts), width, tokens, 1, false});  // the router
  return out;
}

}  // namespace p3d::plan
