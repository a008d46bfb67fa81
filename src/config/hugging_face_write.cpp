// SPDX-License-Identifier: Apache-2.0
#include <p3d/config/hugging_face.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace p3d::config {

namespace {

using Json = nlohmann::ordered_json;

/// The keys of `m` that a family does not have.
std::vector<std::string> strange(Model const& m, ModelFamily family) {
  std::vector<std::string> out;
  auto const want = [&](bool good, char const* key, std::string const& value) {
    if (!good) out.push_back(fmt::format("{} = {}", key, value));
  };
  bool const gpt = family == ModelFamily::gpt2;
  want(m.norm == (gpt ? Norm::layernorm : Norm::rmsnorm), "norm", to_string(m.norm));
  want(m.position == (gpt ? Position::learned : Position::rope), "position", to_string(m.position));
  want(m.activation == (gpt ? Activation::gelu : Activation::swiglu), "activation", to_string(m.activation));
  if (gpt) want(m.bias, "bias", "false");
  if (gpt) want(m.kv_heads == m.heads, "kv_heads", fmt::format("{} (heads = {})", m.kv_heads, m.heads));
  return out;
}

Json rope_of(Model const& m) {
  if (m.rope_scaling == RopeScaling::none) return nullptr;
  Json rope{{"rope_type", to_string(m.rope_scaling)}, {"factor", m.rope_scaling_factor}};
  if (m.rope_scaling == RopeScaling::llama3) {
    rope["low_freq_factor"] = m.rope_low_freq_factor;
    rope["high_freq_factor"] = m.rope_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_original_seq_len;
  }
  return rope;
}

}  // namespace

ModelFamily family_of(Model const& m) {
  auto const gpt = strange(m, ModelFamily::gpt2), llama = strange(m, ModelFamily::llama);
  if (gpt.empty()) return ModelFamily::gpt2;
  if (llama.empty()) return ModelFamily::llama;
  bool const nearer_gpt = gpt.size() <= llama.size();
  throw base::Error(
      {.expected = "a model of the form of GPT-2 (layernorm, learned, gelu, bias, kv_heads = heads) or of Llama "
                   "(rmsnorm, rope, swiglu)",
       .found = fmt::format("{}, which {} does not have", base::join(nearer_gpt ? gpt : llama),
                            nearer_gpt ? "GPT-2" : "Llama"),
       .where = "[model]",
       .fix = "no other form has a name among the models of Hugging Face that p3d knows"},
      base::ExitCode::bad_input);
}

std::string write_hugging_face(Model const& m, std::string_view dtype, std::int64_t eos_token) {
  Json out;
  Json const eos = eos_token >= 0 ? Json(eos_token) : Json(nullptr);
  if (family_of(m) == ModelFamily::gpt2) {
    out = {{"architectures", {"GPT2LMHeadModel"}},
           {"model_type", "gpt2"},
           {"vocab_size", m.vocab_size},
           {"n_positions", m.seq_len},
           {"n_ctx", m.seq_len},  // the same, for readers of older files
           {"n_embd", m.hidden},
           {"n_layer", m.layers},
           {"n_head", m.heads},
           {"n_inner", m.ffn},
           {"activation_function", "gelu_new"},
           {"resid_pdrop", m.dropout},
           {"embd_pdrop", m.dropout},
           {"attn_pdrop", m.dropout},
           {"layer_norm_epsilon", m.norm_eps}};
  } else {
    out = {{"architectures", {"LlamaForCausalLM"}},
           {"model_type", "llama"},
           {"vocab_size", m.vocab_size},
           {"max_position_embeddings", m.seq_len},
           {"hidden_size", m.hidden},
           {"intermediate_size", m.ffn},
           {"num_hidden_layers", m.layers},
           {"num_attention_heads", m.heads},
           {"num_key_value_heads", m.kv_heads},
           {"head_dim", m.head_dim()},
           {"hidden_act", "silu"},
           {"rms_norm_eps", m.norm_eps},
           {"rope_theta", m.rope_theta},
           {"rope_scaling", rope_of(m)},
           {"attention_bias", m.bias},
           {"mlp_bias", m.bias},
           {"attention_dropout", 0.0}};
  }
  out["bos_token_id"] = nullptr;
  out["eos_token_id"] = eos;
  out["tie_word_embeddings"] = m.tied_embeddings;
  out["torch_dtype"] = dtype;
  return out.dump(2) + "\n";
}

}  // namespace p3d::config
