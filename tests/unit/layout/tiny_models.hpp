// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small configurations with every kind of parameter, for the layout tests.

#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>

#include <string>
#include <vector>

namespace p3d::test {

/// Layer norm, GELU, biases, learned positions, tied embedding; a vocabulary that neither 2 nor 3 divides.
inline config::Config tiny_gpt(layout::PerAxis mesh = {}) {
  config::Config c;
  c.model.vocab_size = 13;
  c.model.hidden = 12;
  c.model.layers = 3;
  c.model.heads = 6;
  c.model.kv_heads = 6;
  c.model.ffn = 18;
  c.model.seq_len = 5;
  c.parallel = {mesh, "tp-pp-dp"};
  return c;
}

/// RMS norm, SwiGLU, no biases, rotary positions, grouped-query attention, untied head.
inline config::Config tiny_llama(layout::PerAxis mesh = {}) {
  auto c = tiny_gpt(mesh);
  c.model.kv_heads = 6 / (mesh.tp == 1 ? 3 : mesh.tp == 2 ? 3 : 1);
  c.model.norm = config::Norm::rmsnorm;
  c.model.activation = config::Activation::swiglu;
  c.model.position = config::Position::rope;
  c.model.bias = false;
  c.model.tied_embeddings = false;
  return c;
}

/// As that, with biases of q, k and v alone, heads wider than hidden / heads, attention sinks, and learned slopes.
inline config::Config tiny_qwen2(layout::PerAxis mesh = {}) {
  auto c = tiny_llama(mesh);
  c.model.activation = config::Activation::xielu;
  c.model.qkv_bias = true;
  c.model.head_size = 4;
  c.model.attention_sinks = true;
  return c;
}

/// As tiny_llama, with norms of queries and keys.
inline config::Config tiny_qk_norm(config::QkNorm norm, layout::PerAxis mesh = {}) {
  auto c = tiny_llama(mesh);
  c.model.qk_norm = norm;
  return c;
}

/// As tiny_llama, with norms behind the sub-layers, or on both sides.
inline config::Config tiny_norms(config::NormPlacement placement, layout::PerAxis mesh = {}) {
  auto c = tiny_llama(mesh);
  c.model.norm_placement = placement;
  return c;
}

/// As tiny_llama, with latent attention; queries have a latent, or none.
inline config::Config tiny_mla(bool queries, layout::PerAxis mesh = {}) {
  auto c = tiny_llama(mesh);
  c.model.kv_heads = 6;
  c.model.mla = {
      .kv_lora_rank = 4, .q_lora_rank = queries ? 5 : 0, .qk_nope_head_dim = 3, .qk_rope_head_dim = 2, .v_head_dim = 4};
  c.model.head_size = 5;
  return c;
}

/// As tiny_llama, with experts in layers 1 and 2: routed ones with groups and biases, and gated shared ones. Its tokens
/// are divided over all ranks of a stage. `biased`: linears of experts and of the router have biases.
inline config::Config tiny_moe(layout::PerAxis mesh = {}, bool biased = false) {
  auto c = tiny_llama(mesh);
  c.model.kv_heads = 6;
  auto& m = c.model.moe;
  m.experts = 4;
  m.ffn = 6;
  m.first_dense = 1;
  m.shared_ffn = 18;
  m.shared_gate = true;
  m.bias_update_rate = 1e-3, m.choice_bias = true;
  m.bias = biased;
  c.parallel.sequence = true;
  return c;
}

/// All dense models on every mesh with at most 3 ranks per axis.
inline std::vector<config::Config> tiny_configs() {
  std::vector<config::Config> out;
  for (int dp = 1; dp <= 3; ++dp) {
    for (int tp = 1; tp <= 3; ++tp) {
      for (int pp = 1; pp <= 3; ++pp) {
        out.push_back(tiny_gpt({.tp = tp, .pp = pp, .dp = dp}));
        out.push_back(tiny_llama({.tp = tp, .pp = pp, .dp = dp}));
        out.push_back(tiny_qwen2({.tp = tp, .pp = pp, .dp = dp}));
        for (auto norm : {config::QkNorm::head, config::QkNorm::full})
          out.push_back(tiny_qk_norm(norm, {.tp = tp, .pp = pp, .dp = dp}));
        for (bool const queries : {false, true}) out.push_back(tiny_mla(queries, {.tp = tp, .pp = pp, .dp = dp}));
        for (auto placement : {config::NormPlacement::post, config::NormPlacement::sandwich})
          out.push_back(tiny_norms(placement, {.tp = tp, .pp = pp, .dp = dp}));
      }
    }
  }
  return out;
}

inline std::string describe(config::Config const& c) {
  return std::string(c.model.bias       ? "gpt"
                     : c.model.qkv_bias ? "qwen2"
                                        : "llama") +
         " qk_norm=" + to_string(c.model.qk_norm) + " mla=" + std::to_string(c.model.mla.q_lora_rank) + "," +
         std::to_string(c.model.mla.kv_lora_rank) + " norms=" + to_string(c.model.norm_placement) +
         " dp=" + std::to_string(c.parallel.dp) + " tp=" + std::to_string(c.parallel.tp) +
         " pp=" + std::to_string(c.parallel.pp);
}

}  // namespace p3d::test
