// SPDX-License-Identifier: Apache-2.0
// Reads and writes the config.json of gpt_oss (gpt-oss-20b and 120b): attention sinks, clamped SwiGLU, experts with
// biases in all layers, and a window in every other layer. Unlike in other families of which some layers have a window,
// rotary frequencies are scaled in all layers.
#include "config/hugging_face_families.hpp"

#include "config/limits.hpp"

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// The scaling that GptOssConfig has where a file says none.
void default_scaling(Model& m) {
  m.rope_scaling = RopeScaling::yarn, m.rope_scaling_factor = 32.0, m.rope_original_seq_len = 4096;
  m.rope_truncate = false;
}

/// Passes over keys of the published files that say a number once more.
void read_repeated(Reader& r, Model const& m) {
  auto const same = [&](char const* key, std::int64_t value, char const* as) {
    if (r.integer(key, limits::width, value) != value)
      r.wrong(fmt::format("{} = {}, as {} says", key, value, as), r.found(key));
  };
  same("experts_per_token", m.moe.top_k, "num_experts_per_tok");
  same("num_experts", m.moe.experts, "num_local_experts");
  if (m.rope_scaling != RopeScaling::none)
    same("initial_context_length", m.rope_original_seq_len, "original_max_position_embeddings");
  r.value("initial_context_length");
}

}  // namespace

void read_gpt_oss(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_experts = 128, default_top_k = 4, default_window = 128, default_interval = 2;
  auto& m = out.model;
  if (r.has("quantization_config")) {
    r.wrong(
        "no quantization_config: weights of 4 bits (MXFP4) are converted first (transformers: "
        "from_pretrained(..., quantization_config=Mxfp4Config(dequantize=True)), then save_pretrained), and the key "
        "removed",
        r.found("quantization_config"));
  }
  r.value("quantization_config");
  read_llama(r, out, path, {.norm_eps = 1e-5, .rope_theta = 1.5e5, .kv_heads = 8, .head_dim = 64, .qkv_biases = true});
  if (!r.has("rope_parameters") && !r.has("rope_scaling")) default_scaling(m);
  m.bias = false;  // experts go without the biases of model.bias
  read_experts(r, out, "num_local_experts", default_experts, default_top_k);
  m.bias = m.qkv_bias;  // attention_bias is of all four linears
  m.moe.ffn = m.ffn;
  m.moe.bias = m.moe.normalize = true;
  m.attention_sinks = true;
  m.activation = Activation::swiglu_clamped;
  m.swiglu_alpha = r.number("swiglu_alpha", 1e-300, 1e6, m.swiglu_alpha);
  m.swiglu_limit = r.number("swiglu_limit", 1e-300, 1e6, m.swiglu_limit);
  read_mixed_layers(r, m, default_interval, default_window);
  m.rope_scaling_layers.clear();
  read_repeated(r, m);
}

void write_gpt_oss(Model const& m, nlohmann::ordered_json& out) {
  out["attention_bias"] = m.bias;
  out["num_local_experts"] = m.moe.experts;
  out["num_experts_per_tok"] = m.moe.top_k;
  out["swiglu_alpha"] = m.swiglu_alpha;
  out["swiglu_limit"] = m.swiglu_limit;
}

}  // namespace p3d::config
