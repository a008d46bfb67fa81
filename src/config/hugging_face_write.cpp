// SPDX-License-Identifier: Apache-2.0
// Writes the config.json of a model. First comes the question whether one of the families computes the same function:
// each key of [model] has the values that a family knows, and the others are named in the error. Example: a model with
// rmsnorm, rope, swiglu and no window is a Llama; with layernorm it is none, since Llama has rmsnorm and GPT-2 has
// learned positions.
#include "config/hugging_face_families.hpp"
#include "config/values.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <functional>

namespace p3d::config {

namespace {

using Json = nlohmann::ordered_json;

/// True when `is` is true of any layer.
template <class Is>
bool any_layer(Model const& m, Is const& is) {
  for (std::int64_t l = 0; l < m.layers; ++l)
    if (is(l)) return true;
  return false;
}
bool has_window(Model const& m) {
  return any_layer(m, [&](auto l) { return m.window_of(l) > 0; });
}
/// True when all layers have the same window, or none.
bool one_window(Model const& m) {
  return !any_layer(m, [&](auto l) { return m.window_of(l) != m.window_of(0); });
}
/// True when some layers have the same window, and others none.
bool one_window_or_none(Model const& m) {
  std::int64_t window = 0;
  return !any_layer(m, [&](auto l) {
    bool const other = m.window_of(l) != 0 && window != 0 && m.window_of(l) != window;
    if (m.window_of(l) != 0) window = m.window_of(l);
    return other;
  });
}
bool has_multiplier(Model const& m) {
  return m.embedding_multiplier != 1.0 || m.attention_multiplier != 0.0 || m.residual_multiplier != 1.0 ||
         m.logits_scaling != 1.0;
}
bool has_layer_without_rope(Model const& m) {
  return m.position == Position::rope && any_layer(m, [&](auto l) { return !m.rotates(l); });
}

/// The whole number whose root divides the scores; 0: there is none.
std::int64_t pre_attention_scalar(Model const& m) {
  auto const scale = m.attention_scale();
  auto const scalar = static_cast<std::int64_t>(std::llround(1.0 / (scale * scale)));
  return scalar > 0 && 1.0 / std::sqrt(static_cast<double>(scalar)) == scale ? scalar : 0;
}

/// Asks for the keys of experts that a family has.
void want_experts(Moe const& moe, ModelFamily family, bool all_layers, Want const& want) {
  auto const number = [](auto n) { return fmt::format("{}", n); };
  if (!moe.on()) return want(false, "moe.experts", "0");
  want(moe.score == RouterScore::softmax, "moe.score", to_string(moe.score));
  want(moe.scale == 1.0, "moe.scale", number(moe.scale));
  want(!moe.grouped(), "moe.groups", number(moe.groups));
  want(!moe.choice_bias, "moe.choice_bias", "true");
  bool const gpt_oss = family == ModelFamily::gpt_oss;
  want(moe.bias == gpt_oss, "moe.bias", moe.bias ? "true" : "false");
  want(moe.capacity_factor == 0.0, "moe.capacity_factor", number(moe.capacity_factor));
  if (family == ModelFamily::qwen2_moe) return want(moe.shared_gate, "moe.shared_gate", "false");
  want(moe.shared_ffn == 0, "moe.shared_ffn", number(moe.shared_ffn));
  if (family == ModelFamily::qwen3_moe) return;
  if (family == ModelFamily::mixtral || gpt_oss) want(moe.normalize, "moe.normalize", "false");
  want(all_layers, moe.first_dense > 0 ? "moe.first_dense" : "moe.every",
       number(moe.first_dense > 0 ? moe.first_dense : moe.every));
}

/// The keys of `m`, with their values, that a family does not have.
std::vector<std::string> strange(Model const& m, ModelFamily family) {
  std::vector<std::string> out;
  Want const want = [&](bool good, char const* key, std::string const& value) {
    if (!good) out.push_back(fmt::format("{} = {}", key, value));
  };
  bool const gpt = family == ModelFamily::gpt2;
  want(m.norm == (gpt ? Norm::layernorm : Norm::rmsnorm), "norm", to_string(m.norm));
  want(m.position == (gpt ? Position::learned : Position::rope), "position", to_string(m.position));
  bool const gemma3 = family == ModelFamily::gemma3_text, gemma = gemma3 || family == ModelFamily::gemma2;
  bool const gpt_oss = family == ModelFamily::gpt_oss, apertus = family == ModelFamily::apertus;
  auto const activation = gpt       ? Activation::gelu
                          : gemma   ? Activation::geglu
                          : gpt_oss ? Activation::swiglu_clamped
                          : apertus ? Activation::xielu
                                    : Activation::swiglu;
  want(m.activation == activation, "activation", to_string(m.activation));
  want(m.norm_offset == (gemma ? 1 : 0), "norm_offset", fmt::format("{}", m.norm_offset));
  if (family != ModelFamily::gemma2)
    want(m.attention_softcap == 0.0, "attention_softcap", fmt::format("{}", m.attention_softcap));
  if (!gemma) want(m.logits_softcap == 0.0, "logits_softcap", fmt::format("{}", m.logits_softcap));
  if (gemma3 || family == ModelFamily::olmo3)
    want(m.rope_scaling != RopeScaling::yarn || m.rope_truncate, "rope_truncate", "false");
  if (family != ModelFamily::ministral3)
    want(m.rope_query_beta == 0.0, "rope_query_beta", fmt::format("{}", m.rope_query_beta));
  if (!gemma3) want(m.rope_local_theta == 0.0, "rope_local_theta", fmt::format("{}", m.rope_local_theta));
  if (gpt) want(m.bias, "bias", "false");
  if (gpt) want(m.kv_heads == m.heads, "kv_heads", fmt::format("{} (heads = {})", m.kv_heads, m.heads));
  bool const even = gpt || family == ModelFamily::olmoe;  // transformers sizes OLMoE's norms by hidden
  if (even) want(m.head_dim() * m.heads == m.hidden, "head_dim", fmt::format("{}", m.head_dim()));
  bool const phi3 = family == ModelFamily::phi3;
  auto const windows = row_of(family).windows;
  bool const good_window = windows == FamilyWindows::none  ? !has_window(m)
                           : windows == FamilyWindows::one ? one_window(m)
                                                           : one_window_or_none(m);
  want(good_window, "window", text_of_layers(m.window, 0));
  // Where layers differ, those without a window are scaled; Gemma 2 and gpt-oss turn all alike.
  bool const mixed = windows == FamilyWindows::mixed && family != ModelFamily::gemma2 && !gpt_oss;
  bool const scaled = m.rope_scaling == RopeScaling::none ||
                      !any_layer(m, [&](auto l) { return m.scales_rope(l) != (!mixed || m.window_of(l) == 0); });
  want(scaled, "rope_scaling_layers", text_of_layers(m.rope_scaling_layers, 1));
  want(m.norm_placement == row_of(family).norm_placement, "norm_placement", to_string(m.norm_placement));
  bool const glm4 = family == ModelFamily::glm4, glm4_moe = family == ModelFamily::glm4_moe;
  bool const deepseek = family == ModelFamily::deepseek_v3;
  if (!glm4 && !glm4_moe && !phi3 && !gpt)
    want(m.rope_fraction == 1.0, "rope_fraction", fmt::format("{}", m.rope_fraction));
  if (!gpt && !deepseek) want((m.rope_pairs == RopePairs::neighbours) == glm4, "rope_pairs", to_string(m.rope_pairs));
  if (family != ModelFamily::granite) {
    double const embedding = gemma ? std::sqrt(static_cast<double>(m.hidden)) : 1.0;
    want(m.embedding_multiplier == embedding, "embedding_multiplier", fmt::format("{}", m.embedding_multiplier));
    bool const scaled_scores = m.attention_multiplier != 0.0 && !(gemma && pre_attention_scalar(m));
    if (!deepseek) want(!scaled_scores, "attention_multiplier", fmt::format("{}", m.attention_multiplier));
    want(m.residual_multiplier == 1.0, "residual_multiplier", fmt::format("{}", m.residual_multiplier));
    want(m.logits_scaling == 1.0, "logits_scaling", fmt::format("{}", m.logits_scaling));
  }
  bool const smollm3 = family == ModelFamily::smollm3;
  bool const biased = gpt || family == ModelFamily::llama || family == ModelFamily::granite || smollm3;  // by the file
  if (!biased && !gpt_oss) want(!m.bias, "bias", "true");
  want(m.attention_sinks == gpt_oss, "attention_sinks", m.attention_sinks ? "true" : "false");
  bool const by_file =
      glm4 || glm4_moe || family == ModelFamily::qwen2_moe;  // the file says whether q, k and v have biases
  bool const qwen2 = family == ModelFamily::qwen2;
  if (!by_file && !m.bias) want(m.qkv_bias == qwen2, "qkv_bias", m.qkv_bias ? "true" : "false");
  bool const long_rope = m.rope_scaling == RopeScaling::longrope;
  want(phi3 ? long_rope || m.rope_scaling == RopeScaling::none : !long_rope, "rope_scaling", to_string(m.rope_scaling));
  bool const good_norm = m.qk_norm == row_of(family).qk_norm || (glm4_moe && m.qk_norm == QkNorm::head);
  want(good_norm, "qk_norm", to_string(m.qk_norm));
  if (deepseek)
    want_latent_attention(m, want);
  else
    want(!m.mla.on(), "mla.kv_lora_rank", fmt::format("{}", m.mla.kv_lora_rank));
  if (!has_choice_bias(family)) want(!m.mtp.on(), "mtp.depth", fmt::format("{}", m.mtp.depth));
  if (!gpt && !smollm3) want(!has_layer_without_rope(m), "rope_layers", text_of_layers(m.rope_layers, 1));
  if (has_choice_bias(family))
    want_biased_experts(m, family, want);
  else if (row_of(family).experts)
    want_experts(m.moe, family, m.moe_layers() == m.layers, want);
  else
    want(!m.moe.on(), "moe.experts", fmt::format("{}", m.moe.experts));
  return out;
}

/// The value of rope_scaling; null without scaling.
Json rope_of(Model const& m) {
  if (m.rope_scaling == RopeScaling::none) return nullptr;
  Json rope{{"rope_type", to_string(m.rope_scaling)}, {"factor", m.rope_scaling_factor}};
  if (m.rope_scaling == RopeScaling::llama3) {
    rope["low_freq_factor"] = m.rope_low_freq_factor;
    rope["high_freq_factor"] = m.rope_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_original_seq_len;
  }
  if (m.rope_scaling == RopeScaling::yarn) {
    rope["original_max_position_embeddings"] = m.rope_original_seq_len;
    rope["beta_fast"] = m.rope_beta_fast;
    rope["beta_slow"] = m.rope_beta_slow;
    if (m.rope_attention_factor > 0) rope["attention_factor"] = m.rope_attention_factor;
    if (!m.rope_truncate) rope["truncate"] = false;
  }
  if (m.rope_scaling == RopeScaling::longrope) {
    rope["short_factor"] = m.rope_short_factors;
    rope["long_factor"] = m.rope_long_factors;
    if (m.rope_attention_factor > 0) rope["attention_factor"] = m.rope_attention_factor;
  }
  return rope;
}

/// The only one of the families like Llama that the model can be.
ModelFamily like_llama(Model const& m) {
  if (m.activation == Activation::xielu) return ModelFamily::apertus;
  if (m.attention_sinks) return ModelFamily::gpt_oss;
  if (m.mla.on()) return ModelFamily::deepseek_v3;
  if (m.norm_placement == NormPlacement::sandwich)
    return m.norm_offset == 0          ? ModelFamily::glm4
           : m.qk_norm == QkNorm::none ? ModelFamily::gemma2
                                       : ModelFamily::gemma3_text;
  if (m.norm_placement == NormPlacement::post) return has_window(m) ? ModelFamily::olmo3 : ModelFamily::olmo2;
  if (has_multiplier(m)) return ModelFamily::granite;
  if (m.moe.on() && m.moe.score == RouterScore::sigmoid && m.moe.choice_bias) return ModelFamily::glm4_moe;
  if (m.rope_query_beta > 0) return ModelFamily::ministral3;
  if (m.qk_norm == QkNorm::full) return ModelFamily::olmoe;
  if (m.qk_norm == QkNorm::head) return m.moe.on() ? ModelFamily::qwen3_moe : ModelFamily::qwen3;
  if (m.moe.on()) return m.moe.shared_ffn > 0 ? ModelFamily::qwen2_moe : ModelFamily::mixtral;
  if (has_layer_without_rope(m)) return ModelFamily::smollm3;
  if (m.rope_fraction != 1.0 || m.rope_scaling == RopeScaling::longrope) return ModelFamily::phi3;
  // LlamaConfig refuses heads whose number does not divide the width, although it has head_dim.
  if (has_window(m) || (m.hidden % m.heads != 0 && !m.bias && !m.qkv_bias)) return ModelFamily::mistral;
  return m.qkv_bias && !m.bias ? ModelFamily::qwen2 : ModelFamily::llama;
}

}  // namespace

ModelFamily family_of(Model const& m, std::optional<ModelFamily> origin) {
  if (origin && strange(m, *origin).empty()) return *origin;
  auto const gpt = strange(m, ModelFamily::gpt2);
  if (gpt.empty()) return ModelFamily::gpt2;
  auto const other = like_llama(m);
  auto const llama = strange(m, other);
  if (llama.empty()) return other;
  bool const nearer_gpt = gpt.size() <= llama.size();
  std::vector<std::string> forms;
  for (auto const& row : model_families()) forms.push_back(fmt::format("{} ({})", row.name, row.form));
  base::refuse({.expected = "a model of the form of " + base::join_last(forms, ", of ", " or of "),
                .found = fmt::format("{}, which {} does not have", base::join(nearer_gpt ? gpt : llama),
                                     row_of(nearer_gpt ? ModelFamily::gpt2 : other).name),
                .where = "[model]",
                .fix = "no other form has a name among the models of Hugging Face that p3d knows"});
}

namespace {

/// The keys of GPT2Config.
Json write_gpt2(Model const& m) {
  return {{"architectures", {row_of(ModelFamily::gpt2).architecture}},
          {"model_type", "gpt2"},
          {"vocab_size", m.vocab_size},
          {"n_positions", m.seq_len},
          {"n_ctx", m.seq_len},  // n_positions again, for readers of older files
          {"n_embd", m.hidden},
          {"n_layer", m.layers},
          {"n_head", m.heads},
          {"n_inner", m.ffn},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", m.dropout},
          {"embd_pdrop", m.dropout},
          {"attn_pdrop", m.dropout},
          {"layer_norm_epsilon", m.norm_eps}};
}

/// Adds the keys of a model with experts.
void write_experts(Model const& m, ModelFamily family, Json& out) {
  out["num_experts_per_tok"] = m.moe.top_k;
  if (family == ModelFamily::mixtral) {
    out["num_local_experts"] = m.moe.experts;
    return;
  }
  out["num_experts"] = m.moe.experts;
  out["norm_topk_prob"] = m.moe.normalize;
  if (family == ModelFamily::olmoe) return;
  std::vector<std::int64_t> dense;
  for (std::int64_t l = 0; l < m.moe.first_dense; ++l) dense.push_back(l);
  out["moe_intermediate_size"] = m.moe.ffn;
  out["decoder_sparse_step"] = m.moe.every;
  out["mlp_only_layers"] = dense;
  out["use_sliding_window"] = false;
  if (family != ModelFamily::qwen2_moe) return;
  out["shared_expert_intermediate_size"] = m.moe.shared_ffn;
  out["qkv_bias"] = m.qkv_bias;
}

/// The value of rope_parameters (transformers 5).
Json rope_parameters_of(Model const& m) {
  Json rope = rope_of(m);
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = m.rope_theta;
  return rope;
}

/// Names the scaling even where there is none: without the key transformers takes one of its own for some families.
/// Versions before 5 know this form alone.
void write_rope_scaling(Model const& m, Json& out) {
  if (m.rope_scaling == RopeScaling::none) out["rope_scaling"] = {{"rope_type", "default"}};
}
/// Moves the keys of rotary positions into one object, for a model whose queries grow with their position.
void write_query_beta(Model const& m, Json& out) {
  out.erase("rope_theta"), out.erase("rope_scaling");
  auto& rope = out["rope_parameters"] = rope_parameters_of(m);
  rope["original_max_position_embeddings"] = m.rope_original_seq_len;
  rope["llama_4_scaling_beta"] = m.rope_query_beta;
}

/// Adds the keys of a model of which some layers have a window.
void write_mixed_layers(Model const& m, ModelFamily family, Json& out) {
  for (std::int64_t l = 0; l < m.layers; ++l) {
    if (m.window_of(l) > 0) out["sliding_window"] = m.window_of(l);
    out["layer_types"].push_back(m.window_of(l) > 0 ? "sliding_attention" : "full_attention");
  }
  if (family == ModelFamily::gemma2) return;
  if (family == ModelFamily::gemma3_text) {
    out["rope_local_base_freq"] = m.rope_local_theta > 0 ? m.rope_local_theta : m.rope_theta;
    return;
  }
  if (family == ModelFamily::gpt_oss) return write_rope_scaling(m, out);  // for it that would be a YaRN
  // transformers 5.24 reads another rope_theta of OLMo 3 than its default from this form alone; earlier versions read
  // the key of the whole model.
  constexpr double default_theta = 5e5;
  if (m.rope_theta == default_theta) return;
  Json const plain{{"rope_type", "default"}, {"rope_theta", m.rope_theta}};
  out["rope_parameters"] = {{"full_attention", rope_parameters_of(m)}, {"sliding_attention", plain}};
  out.erase("rope_scaling");
}

/// Adds the keys of Gemma 2 and 3 that Llama has not.
void write_gemma(Model const& m, ModelFamily family, Json& out) {
  out.erase("hidden_act");
  out["hidden_activation"] = "gelu_pytorch_tanh";
  out["query_pre_attn_scalar"] = pre_attention_scalar(m);
  out["attention_bias"] = false;
  // The caps that a Gemma 2 has where the file names none.
  bool const needed = family == ModelFamily::gemma2;
  auto const cap = [&](char const* key, double value) {
    if (needed || value > 0) out[key] = value > 0 ? Json(value) : Json(nullptr);
  };
  cap("attn_logit_softcapping", m.attention_softcap);
  cap("final_logit_softcapping", m.logits_softcap);
}

/// The keys of LlamaConfig and of the configurations after it.
Json write_llama(Model const& m, ModelFamily family) {
  bool const mixtral = family == ModelFamily::mixtral;
  bool const gpt_oss = family == ModelFamily::gpt_oss;
  bool const all_experts =
      mixtral || gpt_oss || family == ModelFamily::olmoe;  // intermediate_size is that of an expert
  Json out{{"architectures", {row_of(family).architecture}},
           {"model_type", to_string(family)},
           {"vocab_size", m.vocab_size},
           {"max_position_embeddings", m.seq_len},
           {"hidden_size", m.hidden},
           {"intermediate_size", all_experts ? m.moe.ffn : m.ffn},
           {"num_hidden_layers", m.layers},
           {"num_attention_heads", m.heads},
           {"num_key_value_heads", m.kv_heads},
           {"head_dim", m.head_dim()},
           {"hidden_act", "silu"},
           {"rms_norm_eps", m.norm_eps},
           {"rope_theta", m.rope_theta},
           {"rope_scaling", rope_of(m)},
           {"attention_dropout", 0.0}};
  if (family == ModelFamily::mistral) out["sliding_window"] = has_window(m) ? Json(m.window_of(0)) : Json(nullptr);
  if (mixtral && has_window(m)) out["sliding_window"] = m.window_of(0);
  bool const smollm3 = family == ModelFamily::smollm3;
  bool const granite = family == ModelFamily::granite;
  if (family == ModelFamily::llama || granite || smollm3) out["attention_bias"] = out["mlp_bias"] = m.bias;
  if (granite) {
    out["embedding_multiplier"] = m.embedding_multiplier;
    out["attention_multiplier"] = m.attention_scale();
    out["residual_multiplier"] = m.residual_multiplier;
    out["logits_scaling"] = m.logits_scaling;
  }
  bool const glm = family == ModelFamily::glm4 || family == ModelFamily::glm4_moe;
  if (glm) out["attention_bias"] = m.qkv_bias;
  if (family == ModelFamily::glm4_moe) out["use_qk_norm"] = m.qk_norm == QkNorm::head;
  bool const phi3 = family == ModelFamily::phi3;
  if (glm || phi3) out["partial_rotary_factor"] = m.rope_fraction;
  if (phi3) out["resid_pdrop"] = out["embd_pdrop"] = 0.0;
  if (m.rope_scaling == RopeScaling::longrope) out["original_max_position_embeddings"] = m.rope_original_seq_len;
  if (family == ModelFamily::ministral3) write_query_beta(m, out);
  if (phi3 || family == ModelFamily::ministral3)
    out["sliding_window"] = has_window(m) ? Json(m.window_of(0)) : Json(nullptr);
  if (family == ModelFamily::apertus) {
    out["hidden_act"] = "xielu";
    write_rope_scaling(m, out);  // that would be llama3's
  }
  if (row_of(family).windows == FamilyWindows::mixed) write_mixed_layers(m, family, out);
  if (family == ModelFamily::gemma2 || family == ModelFamily::gemma3_text) write_gemma(m, family, out);
  if (family == ModelFamily::qwen2 || family == ModelFamily::qwen3 || smollm3) out["use_sliding_window"] = false;
  if (smollm3)
    for (std::int64_t l = 0; l < m.layers; ++l) out["no_rope_layers"].push_back(m.rotates(l) ? 1 : 0);
  // These know head_dim without having such a key of their own.
  bool const no_key = smollm3 || family == ModelFamily::qwen2 || family == ModelFamily::qwen2_moe ||
                      family == ModelFamily::qwen3_moe || family == ModelFamily::olmoe ||
                      family == ModelFamily::olmo2 || family == ModelFamily::olmo3 || granite || phi3;
  if (no_key && m.head_dim() * m.heads == m.hidden) out.erase("head_dim");
  if (family == ModelFamily::deepseek_v3) write_latent_attention(m, out);
  if (gpt_oss)
    write_gpt_oss(m, out);
  else if (has_choice_bias(family))
    write_biased_experts(m, out);
  else if (row_of(family).experts)
    write_experts(m, family, out);
  return out;
}

}  // namespace

std::string write_hugging_face(Model const& m, std::string_view dtype, std::int64_t eos_token,
                               std::optional<ModelFamily> origin) {
  auto const family = family_of(m, origin);
  auto out = family == ModelFamily::gpt2 ? write_gpt2(m) : write_llama(m, family);
  Json const eos = eos_token >= 0 ? Json(eos_token) : Json(nullptr);
  out["bos_token_id"] = nullptr;
  out["eos_token_id"] = eos;
  // Some families have a default here, a token whose embedding transformers would not train.
  out["pad_token_id"] = nullptr;
  out["tie_word_embeddings"] = m.tied_embeddings;
  out["torch_dtype"] = dtype;
  return out.dump(2) + "\n";
}

}  // namespace p3d::config
