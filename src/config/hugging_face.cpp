// SPDX-License-Identifier: Apache-2.0
// Reads the config.json of a model in Hugging Face form, strictly: a key that is ignored by mistake gives a model that
// computes something else without a word. So every key of the file must be one of three kinds: one that is mapped to
// [model] ("n_embd" is model.hidden), one that must have the only value that p3d's model has ("scale_attn_weights":
// true), or one that is known to have no effect on what the model computes ("torch_dtype"). All others are listed in
// one error. The function of each family below reads the keys that are mapped; Reader::finish() sees to the other two
// kinds.
#include <p3d/config/hugging_face.hpp>

#include "config/hugging_face_families.hpp"
#include "config/limits.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/config/json_text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

namespace p3d::config {

namespace {

using nlohmann::json;

constexpr double most_dropout = 1.0 - 1e-15;

/// Reads the keys of GPT2Config.
void read_gpt2(Reader& r, HuggingFaceModel& out) {
  auto& m = out.model;
  m.vocab_size = r.integer("vocab_size", limits::width);
  m.hidden = r.integer("n_embd", limits::hidden);
  m.layers = r.integer("n_layer", limits::layers);
  m.heads = m.kv_heads = r.integer("n_head", limits::hidden);
  m.seq_len = r.integer("n_positions", limits::width);
  m.ffn = r.integer("n_inner", limits::width, 4 * m.hidden);
  if (r.integer("n_ctx", limits::width, m.seq_len) != m.seq_len)  // in older files
    r.wrong("n_ctx = n_positions", fmt::format("{} and {}", r.found("n_ctx"), m.seq_len));
  m.norm_eps = r.number("layer_norm_epsilon", 1e-300, 1.0, 1e-5);
  auto const activation = r.value("activation_function");
  if (!activation.is_null() && activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    r.wrong("activation_function = \"gelu_new\" or \"gelu_pytorch_tanh\" (p3d's gelu is the tanh form)",
            r.found("activation_function"));
  double const dropouts[] = {r.number("resid_pdrop", 0, most_dropout, 0.1),
                             r.number("embd_pdrop", 0, most_dropout, 0.1),
                             r.number("attn_pdrop", 0, most_dropout, 0.1)};
  bool const same = dropouts[0] == dropouts[1] && dropouts[0] == dropouts[2];
  m.dropout = same ? dropouts[0] : 0.0;
  if (!same) {
    out.notes.push_back(
        fmt::format("config.json has three values of dropout ({}, {}, {}), model.dropout is one: it is "
                    "0 unless the input sets it",
                    dropouts[0], dropouts[1], dropouts[2]));
  }
  m.tied_embeddings = r.flag("tie_word_embeddings", true);
  m.norm = Norm::layernorm;
  m.position = Position::learned;
  m.activation = Activation::gelu;
  m.bias = m.qkv_bias = true;
  m.head_size = m.hidden / m.heads;
}

/// The first numbers of a list, as many as give all of it when they are repeated; none where all are `usual`.
std::vector<std::int64_t> shortest_period(std::vector<std::int64_t> list, std::int64_t usual) {
  if (std::all_of(list.begin(), list.end(), [&](auto value) { return value == usual; })) return {};
  std::size_t period = 1;
  auto const repeats = [&] {
    for (auto i = period; i < list.size(); ++i)
      if (list[i] != list[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  list.resize(period);
  return list;
}

}  // namespace

void read_llama(Reader& r, HuggingFaceModel& out, std::string const& path, LlamaDefaults const& defaults) {
  auto& m = out.model;
  m.vocab_size = r.integer("vocab_size", limits::width);
  m.hidden = r.integer("hidden_size", limits::hidden);
  m.layers = r.integer("num_hidden_layers", limits::layers);
  m.heads = r.integer("num_attention_heads", limits::hidden);
  m.kv_heads = r.integer("num_key_value_heads", limits::hidden, m.heads);  // null: as many as heads
  if (defaults.kv_heads > 0 && r.left_out("num_key_value_heads")) m.kv_heads = defaults.kv_heads;
  m.ffn = r.integer("intermediate_size", limits::width);
  m.seq_len = r.integer("max_position_embeddings", limits::width);
  m.norm_eps = r.number("rms_norm_eps", 1e-300, 1.0, defaults.norm_eps);
  if (defaults.rope_fraction > 0) m.rope_fraction = defaults.rope_fraction;
  read_rope(r, m, defaults, path);
  auto const even = std::max<std::int64_t>(1, m.hidden / m.heads);
  m.head_size = r.integer("head_dim", limits::hidden, defaults.head_dim > 0 ? defaults.head_dim : even);
  bool const attention = r.flag("attention_bias", defaults.qkv_biases && defaults.biased),
             mlp = r.flag("mlp_bias", false);
  if (defaults.qkv_biases && mlp)
    r.wrong("mlp_bias = false", r.found("mlp_bias"));
  else if (!defaults.biases && attention)
    r.wrong(fmt::format("attention_bias = false (p3d has {} without biases)", defaults.unbiased),
            r.found("attention_bias"));
  else if (!defaults.qkv_biases && attention != mlp)
    r.wrong("attention_bias and mlp_bias alike (model.bias is one key for all linear layers)",
            fmt::format("attention_bias = {}, mlp_bias = {}", attention, mlp));
  m.bias = attention && mlp;
  m.qkv_bias = defaults.qkv_biases ? attention : m.bias;
  m.tied_embeddings = r.flag("tie_word_embeddings", defaults.tied);
  m.dropout = 0.0;
  if (double const dropout = r.number("attention_dropout", 0, most_dropout, 0.0); dropout > 0.0) {
    out.notes.push_back(
        fmt::format("config.json has attention_dropout = {}, of attention alone: model.dropout, of all "
                    "places, is 0 unless the input sets it",
                    dropout));
  }
  m.norm = Norm::rmsnorm;
  m.position = Position::rope;
  m.activation = Activation::swiglu;
}

void read_experts(Reader& r, HuggingFaceModel& out, char const* number, std::int64_t experts, std::int64_t top_k) {
  auto& moe = out.model.moe;
  char const* const other = "num_local_experts";
  moe.experts = r.integer(r.has(number) ? number : other, limits::experts, experts);
  r.value(number);
  if (std::string_view(number) != other && r.has(number) && r.has(other) && r.value(other) != moe.experts)
    r.wrong(fmt::format("{} = {}, as {} says", other, moe.experts, number), r.found(other));
  moe.top_k = r.integer("num_experts_per_tok", limits::experts, top_k);
  if (moe.top_k > moe.experts)
    r.wrong(fmt::format("num_experts_per_tok of at most {} = {}", number, moe.experts), r.found("num_experts_per_tok"));
  r.value("router_aux_loss_coef");
  if (r.flag("output_router_logits", false)) {
    out.notes.push_back(
        "config.json adds a balancing loss in training (output_router_logits), of each microbatch: "
        "p3d has others, and none unless the input sets model.moe.aux_loss");
  }
  if (out.model.bias) r.wrong("attention_bias = false (a model with experts has no biases)", r.found("attention_bias"));
}

void read_mixed_layers(Reader& r, Model& m, std::int64_t interval, std::int64_t default_window) {
  auto const window = r.integer("sliding_window", limits::width, default_window);
  auto const kinds = r.value("layer_types");
  bool const good = kinds.is_null() || (kinds.is_array() && std::ssize(kinds) == m.layers &&
                                        std::all_of(kinds.begin(), kinds.end(), [](auto const& kind) {
                                          return kind == "full_attention" || kind == "sliding_attention";
                                        }));
  if (!good)
    return r.wrong("layer_types, \"full_attention\" or \"sliding_attention\" for each layer", r.found("layer_types"));
  for (std::int64_t l = 0; l < m.layers; ++l) {
    bool const full =
        kinds.is_null() ? (l + 1) % interval == 0 : kinds[static_cast<std::size_t>(l)] == "full_attention";
    m.window.push_back(full ? 0 : window);
    m.rope_scaling_layers.push_back(full || m.rope_scaling == RopeScaling::none ? 1 : 0);
  }
  bool const windowed = std::any_of(m.window.begin(), m.window.end(), [](auto w) { return w > 0; });
  if (windowed && !r.has("sliding_window") && !r.left_out("sliding_window"))
    r.wrong("sliding_window, a whole number, where a layer has sliding_attention", r.found("sliding_window"));
  m.rope_scaling_layers = shortest_period(std::move(m.rope_scaling_layers), 1);
  m.window = shortest_period(std::move(m.window), 0);
}

namespace {

/// Reads MistralConfig: a Llama without biases whose layers have one window. A key that is left out has the default,
/// and null stands for none (sliding_window) or for all heads (num_key_value_heads).
void read_mistral(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_window = 4096;
  read_llama(r, out, path, {.kv_heads = 8});
  auto& m = out.model;
  if (m.bias) r.wrong("attention_bias = false (Mistral has no biases)", r.found("attention_bias"));
  bool const windowed = r.has("sliding_window") || r.left_out("sliding_window");
  if (windowed) m.window = {r.integer("sliding_window", limits::width, default_window)};
  r.value("sliding_window");
}

/// Reads Ministral3Config: a Mistral, usually without window, whose queries grow with their position.
void read_ministral3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path, {.norm_eps = 1e-5, .kv_heads = 8, .head_dim = 128, .query_beta = true});
  auto& m = out.model;
  if (m.bias) r.wrong("attention_bias = false (Ministral has no biases)", r.found("attention_bias"));
  if (!r.has("rope_parameters") && !r.has("rope_scaling"))
    r.wrong("rope_parameters, an object", r.found("rope_parameters"));
  if (r.has("sliding_window")) m.window = {r.integer("sliding_window", limits::width)};
}

/// Passes over the keys of a window that is not in use: use_sliding_window is false (required()).
void skip_unused_window(Reader& r) {
  r.value("sliding_window");
  r.value("max_window_layers");
}

/// Reads Qwen2Config: a Llama whose q, k and v have biases, which no key says, and whose windows are not in use.
void read_qwen2(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path, {.kv_heads = 32});
  auto& m = out.model;
  if (m.bias) r.wrong("attention_bias = false (Qwen2 has biases of q, k and v alone)", r.found("attention_bias"));
  m.qkv_bias = true;
  skip_unused_window(r);
}

/// Reads Qwen3Config: a Llama without biases whose heads norm queries and keys, and whose windows are not in use.
void read_qwen3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path, {.kv_heads = 32, .head_dim = 128, .biases = false});
  skip_unused_window(r);
}

/// Reads SmolLM3Config: a Llama of which some layers do not rotate queries and keys. They are listed, or one comes
/// every no_rope_layer_interval layers.
void read_smollm3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_interval = 4;
  read_llama(r, out, path, {.rope_theta = 2e6, .tied = true, .kv_heads = 4});
  auto& m = out.model;
  auto const interval = r.integer("no_rope_layer_interval", limits::layers, default_interval);
  auto const list = r.value("no_rope_layers");
  bool const good = list.is_null() || (list.is_array() && std::ssize(list) >= m.layers &&
                                       std::all_of(list.begin(), list.end(), [](auto const& layer) {
                                         return layer.is_number_integer() && (layer == 0 || layer == 1);
                                       }));
  if (!good) {
    r.wrong("no_rope_layers, a list of 0 and 1 with a number for each layer", r.found("no_rope_layers"));
  } else {
    std::vector<std::int64_t> rotates;
    for (std::int64_t l = 0; l < m.layers; ++l)
      rotates.push_back(list.is_null() ? ((l + 1) % interval != 0) : list[static_cast<std::size_t>(l)].get<int>());
    m.rope_layers = shortest_period(std::move(rotates), 1);
  }
  skip_unused_window(r);
  r.value("pretraining_tp");  // SmolLM3's published file has it, its code does not read it
}

/// Reads MixtralConfig: a Mistral whose layers have experts.
void read_mixtral(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_experts = 8, default_top_k = 2;
  read_llama(r, out, path, {.norm_eps = 1e-5, .rope_theta = 1e6, .kv_heads = 8});
  auto& m = out.model;
  if (r.has("sliding_window")) m.window = {r.integer("sliding_window", limits::width)};
  read_experts(r, out, "num_local_experts", default_experts, default_top_k);
  m.moe.ffn = m.ffn;
  m.moe.normalize = true;
  if (r.number("router_jitter_noise", 0.0, 1.0, 0.0) > 0.0)
    out.notes.push_back(
        "config.json has router_jitter_noise, of training: model.moe.jitter is 0 unless the input sets it");
}

/// Reads mlp_only_layers as a number of first layers: the only other dense layers may be those that decoder_sparse_step
/// leaves out.
void read_dense_layers(Reader& r, Model& m) {
  auto const list = r.value("mlp_only_layers");
  std::set<std::int64_t> dense;
  bool good = list.is_null() || list.is_array();
  for (auto const& layer : good ? list : json())
    if ((good = good && layer.is_number_integer() && layer >= 0 && layer < m.layers)) dense.insert(layer.get<int>());
  m.moe.first_dense = dense.empty() ? 0 : *dense.rbegin() + 1;
  for (std::int64_t l = 0; good && l < m.moe.first_dense; ++l) good = dense.contains(l) || (l + 1) % m.moe.every != 0;
  if (!good) r.wrong("mlp_only_layers, a list of the first layers", r.found("mlp_only_layers"));
  if (good && m.moe_layers() == 0) r.wrong("a layer with experts", "none");
}

/// Reads the keys of experts that Qwen2MoeConfig and Qwen3MoeConfig share.
void read_qwen_experts(Reader& r, HuggingFaceModel& out, std::int64_t experts, std::int64_t top_k, std::int64_t ffn) {
  auto& m = out.model;
  read_experts(r, out, "num_experts", experts, top_k);
  m.moe.ffn = r.integer("moe_intermediate_size", limits::width, ffn);
  m.moe.normalize = r.flag("norm_topk_prob", false);
  m.moe.every = r.integer("decoder_sparse_step", limits::layers, 1);
  read_dense_layers(r, m);
  skip_unused_window(r);
}

/// Reads Qwen2MoeConfig: routed and shared experts in some layers.
void read_qwen2_moe(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_experts = 60, default_top_k = 4, default_ffn = 1408, default_shared = 5632;
  read_llama(r, out, path, {.kv_heads = 16});
  auto& m = out.model;
  m.qkv_bias = r.flag("qkv_bias", true);
  read_qwen_experts(r, out, default_experts, default_top_k, default_ffn);
  m.moe.shared_ffn = r.integer("shared_expert_intermediate_size", limits::width, default_shared);
  m.moe.shared_gate = true;
}

/// Reads Qwen3MoeConfig: a Qwen3 with routed experts in some layers.
void read_qwen3_moe(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_experts = 128, default_top_k = 8, default_ffn = 768;
  read_llama(r, out, path, {.kv_heads = 4, .biases = false});
  read_qwen_experts(r, out, default_experts, default_top_k, default_ffn);
}

/// Reads OlmoeConfig: experts in all layers, and one norm for all queries of a token and one for all its keys.
void read_olmoe(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_experts = 64, default_top_k = 8;
  read_llama(r, out, path, {.norm_eps = 1e-5, .biases = false});
  auto& m = out.model;
  if (m.head_dim() * m.heads != m.hidden)
    r.wrong("head_dim = hidden_size / num_attention_heads (OLMoE's norms have hidden_size weights)",
            r.found("head_dim"));
  read_experts(r, out, "num_experts", default_experts, default_top_k);
  m.moe.ffn = m.ffn;
  m.moe.normalize = r.flag("norm_topk_prob", false);
}

/// Reads Olmo2Config: a Llama without biases whose norms stand behind the sub-layers, with norms of all queries and of
/// all keys of a token.
void read_olmo2(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path, {.norm_eps = 1e-5, .biases = false});
}

/// Reads Olmo3Config: an OLMo 2 of which some layers, usually three of four, have a window.
void read_olmo3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_interval = 4;
  constexpr double default_theta = 5e5;
  read_llama(r, out, path, {.norm_eps = 1e-5, .rope_theta = default_theta, .biases = false, .by_kind = true});
  auto& m = out.model;
  if (m.rope_local_theta > 0) r.wrong("one rope_theta in all kinds of layers", "others");
  // Versions of transformers read other forms differently: 5.24 gives rope_theta to the layers without a window alone.
  bool const by_kind = r.has("rope_parameters") && r.value("rope_parameters").contains("full_attention");
  if (!by_kind && (m.rope_theta != default_theta || r.has("rope_parameters")))
    r.wrong("rope_theta = 500000, or rope_parameters of full_attention and sliding_attention", r.found("rope_theta"));
  if (by_kind && r.has("rope_theta") && r.value("rope_theta") != default_theta)
    for (auto const& kind : r.value("rope_parameters").items())
      if (!kind.value().is_object() || !kind.value().contains("rope_theta"))
        r.wrong(fmt::format("rope_theta in rope_parameters of {}", kind.key()), "another one of the whole model alone");
  read_mixed_layers(r, m, default_interval);
}

/// The value of a soft cap; null: 0, none. `otherwise` stands for a key that is left out.
double read_softcap(Reader& r, char const* key, double otherwise) {
  constexpr double least = 1e-3;
  return r.left_out(key) ? otherwise : r.number(key, least, 1e6, 0.0);
}

/// Reads the keys that Gemma 2 and 3 share: norms with 1 + weight, a scaled embedding, GeGLU, and soft caps of scores
/// and logits, whose defaults are given.
void read_gemma(Reader& r, Model& m, double attention_softcap, double logits_softcap) {
  constexpr std::int64_t default_scalar = 256;
  m.activation = Activation::geglu;
  m.norm_offset = 1;
  m.embedding_multiplier = std::sqrt(static_cast<double>(m.hidden));
  auto const scalar = r.integer("query_pre_attn_scalar", limits::hidden, default_scalar);
  if (scalar != m.head_dim()) m.attention_multiplier = 1.0 / std::sqrt(static_cast<double>(scalar));
  auto const activation = r.value("hidden_activation");
  if (!activation.is_null() && activation != "gelu_pytorch_tanh")
    r.wrong("hidden_activation = \"gelu_pytorch_tanh\" (p3d's geglu has the tanh form)", r.found("hidden_activation"));
  m.attention_softcap = read_softcap(r, "attn_logit_softcapping", attention_softcap);
  m.logits_softcap = read_softcap(r, "final_logit_softcapping", logits_softcap);
}

/// Reads Gemma2Config: every second layer has a window, from the first on; all turn alike.
void read_gemma2(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_interval = 2;
  constexpr double attention_softcap = 50.0, logits_softcap = 30.0;
  read_llama(r, out, path, {.tied = true, .kv_heads = 4, .head_dim = 256, .biases = false});
  auto& m = out.model;
  read_gemma(r, m, attention_softcap, logits_softcap);
  read_mixed_layers(r, m, default_interval);
  m.rope_scaling_layers.clear();
  // Published files say these once more, under names that transformers does not read.
  if (r.has("hidden_act") && r.value("hidden_act") != "gelu_pytorch_tanh")
    r.wrong("hidden_act = \"gelu_pytorch_tanh\", as hidden_activation says", r.found("hidden_act"));
  if (r.has("sliding_window_size") && r.value("sliding_window_size") != r.value("sliding_window"))
    r.wrong("sliding_window_size = sliding_window", r.found("sliding_window_size"));
}

/// Reads Gemma3TextConfig: a Gemma 2 with norms of queries and keys and two bases of rotary frequencies, of layers with
/// a window and of others.
void read_gemma3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr std::int64_t default_interval = 6;
  double const local_theta = r.number("rope_local_base_freq", 1e-300, 1e12, 1e4);
  read_llama(r, out, path,
             {.rope_theta = 1e6,
              .rope_local_theta = local_theta,
              .tied = true,
              .kv_heads = 4,
              .head_dim = 256,
              .biases = false,
              .by_kind = true});
  auto& m = out.model;
  read_gemma(r, m, 0.0, 0.0);
  if (m.attention_softcap > 0)
    r.wrong("attn_logit_softcapping = null (transformers does not apply it)", r.found("attn_logit_softcapping"));
  if (!r.has("rope_parameters")) m.rope_local_theta = local_theta;
  if (m.rope_local_theta == m.rope_theta) m.rope_local_theta = 0.0;
  auto interval = r.integer("sliding_window_pattern", limits::layers, default_interval);
  // transformers writes this name beside layer_types, and does not read it.
  auto const written = r.integer("_sliding_window_pattern", limits::layers, interval);
  if (written != interval && !r.has("layer_types"))
    r.wrong("layer_types, or sliding_window_pattern", r.found("_sliding_window_pattern"));
  read_mixed_layers(r, m, interval);
  if (m.window.empty()) m.rope_local_theta = 0.0;
}

/// Reads GraniteConfig: a Llama with multipliers.
void read_granite(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path);
  auto& m = out.model;
  m.embedding_multiplier = r.number("embedding_multiplier", 1e-300, 1e6, 1.0);
  m.attention_multiplier = r.number("attention_multiplier", 1e-300, 1e6, 1.0);
  m.residual_multiplier = r.number("residual_multiplier", 1e-300, 1e6, 1.0);
  m.logits_scaling = r.number("logits_scaling", 1e-300, 1e6, 1.0);
}

/// Reads Glm4Config: a Llama with norms on both sides of the sub-layers, which rotates neighbouring pairs of half of
/// each head.
void read_glm4(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path,
             {.norm_eps = 1.5625e-7, .kv_heads = 2, .head_dim = 128, .qkv_biases = true, .rope_fraction = 0.5});
  out.model.rope_pairs = RopePairs::neighbours;
}

/// Reads Phi3Config: a Llama without biases, of whose heads a part may rotate, for long texts by other frequencies; all
/// layers may have one window.
void read_phi3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path, {.norm_eps = 1e-5, .rope_fraction = 1.0, .longrope = true});
  auto& m = out.model;
  if (m.bias) r.wrong("attention_bias = false (Phi-3 has no biases)", r.found("attention_bias"));
  if (r.has("sliding_window")) m.window = {r.integer("sliding_window", limits::width)};
  if (m.rope_scaling == RopeScaling::none) {
    m.rope_original_seq_len = Model{}.rope_original_seq_len;  // a number of longrope alone
  } else if (m.rope_scaling != RopeScaling::longrope) {
    r.wrong("no rope_scaling but longrope (Phi-3 has no other)", to_string(m.rope_scaling));
  } else if (auto const pairs = m.rotary_dim() / 2;
             std::ssize(m.rope_short_factors) != pairs || std::ssize(m.rope_long_factors) != pairs) {
    r.wrong(fmt::format("short_factor and long_factor, a number for each of {} pairs of dimensions", pairs),
            fmt::format("{} and {}", m.rope_short_factors.size(), m.rope_long_factors.size()));
  }
  for (char const* key : {"resid_pdrop", "embd_pdrop"})
    if (r.number(key, 0, most_dropout, 0.0) > 0.0)
      out.notes.push_back(fmt::format("config.json has {}: model.dropout is 0 unless the input sets it", key));
}

/// Requires that all layers attend alike: to all earlier tokens, or within the window.
void read_layer_types(Reader& r, Model const& m) {
  auto const* const kind = m.window.empty() ? "full_attention" : "sliding_attention";
  auto const kinds = r.value("layer_types");
  bool const good = kinds.is_null() || (kinds.is_array() && std::all_of(kinds.begin(), kinds.end(),
                                                                        [&](auto const& k) { return k == kind; }));
  if (!good) r.wrong(fmt::format("layer_types of {} alone", kind), r.found("layer_types"));
}

/// Requires head counts that divide the sizes of matrices as p3d's model needs it.
void require_heads(Reader& r, HuggingFaceModel const& read) {
  auto const& m = read.model;
  if (m.mla.on()) return;
  bool const gpt = read.family == ModelFamily::gpt2;
  bool const own_default = read.family == ModelFamily::qwen3 || read.family == ModelFamily::glm4 ||
                           read.family == ModelFamily::gemma2 || read.family == ModelFamily::gemma3_text ||
                           read.family == ModelFamily::ministral3 || read.family == ModelFamily::gpt_oss;
  bool const follows = !r.has("head_dim") && !own_default;
  if (m.hidden % m.heads != 0 && follows)
    r.wrong(gpt ? "n_embd divisible by n_head" : "hidden_size divisible by num_attention_heads, or head_dim",
            fmt::format("{} and {}", m.hidden, m.heads));
  else if (!gpt && m.head_dim() % 2 == 0 && (m.rotary_dim() < 2 || m.rotary_dim() % 2 != 0))
    r.wrong("partial_rotary_factor of head_dim, an even number of at least 2",
            fmt::format("{} of {}", m.rope_fraction, m.head_dim()));
  else if (!gpt && m.head_dim() % 2 != 0)
    r.wrong("an even head_dim (or hidden_size / num_attention_heads), whose pairs rotate",
            fmt::format("{}", m.head_dim()));
  if (m.heads % m.kv_heads != 0)
    r.wrong("num_attention_heads divisible by num_key_value_heads", fmt::format("{} and {}", m.heads, m.kv_heads));
}

void read_family(Reader& r, HuggingFaceModel& out, std::string const& path) {
  switch (out.family) {
    case ModelFamily::gpt2: return read_gpt2(r, out);
    case ModelFamily::llama: return read_llama(r, out, path);
    case ModelFamily::mistral: return read_mistral(r, out, path);
    case ModelFamily::ministral3: return read_ministral3(r, out, path);
    case ModelFamily::mixtral: return read_mixtral(r, out, path);
    case ModelFamily::qwen2: return read_qwen2(r, out, path);
    case ModelFamily::qwen2_moe: return read_qwen2_moe(r, out, path);
    case ModelFamily::qwen3: return read_qwen3(r, out, path);
    case ModelFamily::qwen3_moe: return read_qwen3_moe(r, out, path);
    case ModelFamily::olmo2: return read_olmo2(r, out, path);
    case ModelFamily::olmo3: return read_olmo3(r, out, path);
    case ModelFamily::olmoe: return read_olmoe(r, out, path);
    case ModelFamily::granite: return read_granite(r, out, path);
    case ModelFamily::glm4: return read_glm4(r, out, path);
    case ModelFamily::gemma2: return read_gemma2(r, out, path);
    case ModelFamily::gemma3_text: return read_gemma3(r, out, path);
    case ModelFamily::phi3: return read_phi3(r, out, path);
    case ModelFamily::smollm3: return read_smollm3(r, out, path);
    case ModelFamily::deepseek_v3: return read_deepseek_v3(r, out, path);
    case ModelFamily::glm4_moe: return read_glm4_moe(r, out, path);
    case ModelFamily::gpt_oss: return read_gpt_oss(r, out, path);
    case ModelFamily::apertus: return read_apertus(r, out, path);
  }
}

}  // namespace

HuggingFaceModel read_hugging_face(std::string_view text, std::string const& path) {
  auto const file = parse_json(text, path);
  Reader r(file, path);
  auto const type = file.is_object() ? r.value("model_type") : json();
  HuggingFaceModel out;
  auto const types = enum_names(ModelFamily{});
  auto const at = std::find(types.begin(), types.end(), type);
  if (at == types.end()) {
    std::vector<std::string> quoted;
    for (auto const* name : types) quoted.push_back(fmt::format("\"{}\"", name));
    base::refuse({.expected = "model_type " + base::join_last(quoted, ", ", " or "),
                  .found = type.is_null() ? "none" : describe(type),
                  .where = path,
                  .fix = "p3d reads these architectures; choose a model of one of them"});
  }
  out.family = static_cast<ModelFamily>(at - types.begin());
  out.model.qk_norm = row_of(out.family).qk_norm;
  out.model.norm_placement = row_of(out.family).norm_placement;
  read_family(r, out, path);
  if (out.family != ModelFamily::gpt2 && row_of(out.family).windows != FamilyWindows::mixed)
    read_layer_types(r, out.model);
  if (!out.model.moe.on()) out.model.moe.ffn = out.model.ffn;  // the default of the key in an input
  if (r.good()) require_heads(r, out);
  r.finish();
  return out;
}

HuggingFaceModel read_hugging_face_folder(std::string const& folder) {
  auto const path = (std::filesystem::path(folder) / "config.json").string();
  auto out = read_hugging_face(
      base::read_text_file(path, "config.json of a model in Hugging Face form", path, limits::input_bytes), path);
  take_prediction_layers(out, folder);
  return out;
}

}  // namespace p3d::config
