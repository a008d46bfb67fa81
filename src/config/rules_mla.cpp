// SPDX-License-Identifier: Apache-2.0
// Rules of [model.mla].
#include "config/divide.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace p3d::config {

/// Multi-head latent attention has the sizes of its parts, rotary positions and no other form of keys.
void check_latent_attention(Check const& c) {
  auto const& m = c.config.model;
  auto const& a = m.mla;
  if (!c.known({"model.mla.kv_lora_rank", "model.mla.q_lora_rank", "model.mla.qk_nope_head_dim",
                "model.mla.qk_rope_head_dim", "model.mla.v_head_dim"}))
    return;
  if (!a.on()) {
    auto const needs_rank = [&](std::string_view key, auto value, auto unset) {
      if (value == unset) return;
      c.error({key, "model.mla.kv_lora_rank"}, "a model.mla.kv_lora_rank: the other keys of model.mla belong to it",
              fmt::format("{} {}, kv_lora_rank 0", key.substr(10), value),
              fmt::format("set model.mla.kv_lora_rank, or remove {}", key));
    };
    for (auto const& [key, size] : {std::pair{"model.mla.q_lora_rank", a.q_lora_rank},
                                    {"model.mla.qk_nope_head_dim", a.qk_nope_head_dim},
                                    {"model.mla.qk_rope_head_dim", a.qk_rope_head_dim},
                                    {"model.mla.v_head_dim", a.v_head_dim}})
      needs_rank(key, size, std::int64_t{0});
    if (c.known({"model.mla.norm_eps"})) needs_rank("model.mla.norm_eps", a.norm_eps, Mla{}.norm_eps);
    return;
  }
  for (auto const& [key, size] : {std::pair{"model.mla.qk_nope_head_dim", a.qk_nope_head_dim},
                                  {"model.mla.qk_rope_head_dim", a.qk_rope_head_dim},
                                  {"model.mla.v_head_dim", a.v_head_dim}}) {
    if (size > 0) continue;
    c.error({key, "model.mla.kv_lora_rank"}, "a size of at least 1: latent attention has all its parts", "0",
            fmt::format("set {}; DeepSeek-V3 has qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128", key));
    return;
  }
  if (a.qk_rope_head_dim % 2 != 0)
    c.error({"model.mla.qk_rope_head_dim"}, "an even number: rotary position turns pairs of numbers",
            fmt::format("{}", a.qk_rope_head_dim),
            fmt::format("set it to {}", one_of(nearest_multiples(a.qk_rope_head_dim, 2))));
  if (c.known({"model.head_dim"}) && m.head_dim() != a.qk_nope_head_dim + a.qk_rope_head_dim)
    c.error({"model.head_dim", "model.mla.qk_nope_head_dim", "model.mla.qk_rope_head_dim"},
            "model.head_dim the sum of qk_nope_head_dim and qk_rope_head_dim",
            fmt::format("{} for {} + {}", m.head_dim(), a.qk_nope_head_dim, a.qk_rope_head_dim),
            fmt::format("set model.head_dim to {}", a.qk_nope_head_dim + a.qk_rope_head_dim));
  if (c.known({"model.heads", "model.kv_heads"}) && m.kv_heads != m.heads)
    c.error({"model.kv_heads", "model.heads"}, "as many heads of keys and values as of queries with model.mla",
            fmt::format("heads {}, kv_heads {}", m.heads, m.kv_heads),
            fmt::format("set model.kv_heads to {}", m.heads));
  if (c.known({"model.position"}) && m.position != Position::rope)
    c.error({"model.position", "model.mla.kv_lora_rank"}, "model.position = \"rope\" with model.mla",
            fmt::format("position \"{}\"", to_string(m.position)), "set model.position to \"rope\"");
  if (c.known({"model.bias", "model.qkv_bias"}) && m.has_qkv_bias())
    c.error({m.bias ? "model.bias" : "model.qkv_bias", "model.mla.kv_lora_rank"},
            "no biases with model.mla: its linears have none", fmt::format("bias {}, qkv_bias {}", m.bias, m.qkv_bias),
            "set model.bias and model.qkv_bias to false");
  if (c.known({"model.qk_norm"}) && m.qk_norm != QkNorm::none)
    c.error({"model.qk_norm", "model.mla.kv_lora_rank"},
            "model.qk_norm = \"none\" with model.mla: it norms the latents",
            fmt::format("qk_norm \"{}\"", to_string(m.qk_norm)), "remove model.qk_norm");
  if (c.known({"model.rope_fraction"}) && m.rope_fraction != 1.0)
    c.error({"model.rope_fraction", "model.mla.qk_rope_head_dim"},
            "model.rope_fraction = 1 with model.mla: qk_rope_head_dim says what rotates",
            fmt::format("{}", m.rope_fraction), "remove model.rope_fraction");
  if (c.known({"model.rope_query_beta"}) && m.rope_query_beta != 0.0)
    c.error({"model.rope_query_beta", "model.mla.kv_lora_rank"}, "model.rope_query_beta = 0 with model.mla",
            fmt::format("{}", m.rope_query_beta), "remove model.rope_query_beta");
}

}  // namespace p3d::config
