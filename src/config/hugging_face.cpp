// SPDX-License-Identifier: Apache-2.0
// Reads the config.json of a model in Hugging Face form, strictly: a key that is ignored by mistake gives a model that
// computes something else without a word. So every key of the file must be one of three kinds: one that is mapped to
// [model] ("n_embd" is model.hidden), one that must have the only value that p3d's model has ("scale_attn_weights":
// true), or one that is known to have no effect on what the model computes ("torch_dtype"). All others are listed in
// one error. The function of each family below reads the keys that are mapped; Reader::finish() sees to the other two
// kinds.
#include <p3d/config/hugging_face.hpp>

#include "config/limits.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/config/json_text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace p3d::config {

namespace {

using nlohmann::json;

/// Keys that say how a model is trained, stored, called or generated from, and not what it computes.
constexpr char const* without_effect[] = {
    // keys that every model may have
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_name_or_path",
    "_num_labels", "architectures", "attn_implementation", "auto_map", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "decoder_start_token_id", "dtype", "eos_token_id", "exponential_decay_length_penalty",
    "finetuning_task", "gradient_checkpointing", "id2label", "initializer_range", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "loss_type", "max_sequence_length", "neftune_noise_alpha", "num_labels",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "problem_type", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params",
    "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "transformers.js_config",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "xla_device",
    // of generation, in older files
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty",
    "temperature", "top_k", "top_p", "typical_p",
    // special tokens that GPT-2's first files announce
    "n_special", "predict_special_tokens",
    // heads that no language model has
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"};

/// A key that must have one value (or be absent), so that p3d computes the same function. `what` says what p3d has.
struct Required {
  char const* key;
  json value;
  char const* what;
};
std::vector<Required> const& required() {
  static std::vector<Required> const rows{
      {"is_encoder_decoder", false, "a decoder alone"},
      {"is_decoder", false, "no attention to another model"},
      {"add_cross_attention", false, "no attention to another model"},
      {"cross_attention_hidden_size", nullptr, "no attention to another model"},
      {"tie_encoder_decoder", false, "a decoder alone"},
      {"pruned_heads", json::object(), "all heads"},
      {"scale_attn_weights", true, "scores divided by the root of the head's width"},
      {"scale_attn_by_inverse_layer_idx", false, "scores of all layers scaled alike"},
      {"reorder_and_upcast_attn", false, "scores in the order and type of run.precision"},
      {"sliding_window", nullptr, "a window only where model_type is mistral or mixtral"},
      {"use_sliding_window", false, "attention to all earlier tokens"},
      {"quantization_config", nullptr, "weights that are numbers"},
      {"pretraining_tp", 1, "whole GEMMs"},
      {"partial_rotary_factor", 1.0, "rotation of the whole head"},
      {"clip_qkv", nullptr, "queries, keys and values of any size"},
      {"use_mrope", false, "rotation by one position"},
      {"rope_interleaved", false, "rotation of the pairs i and i + head_dim / 2"},
      {"hidden_act", "silu", "SwiGLU"}};
  return rows;
}

/// Reads a file key by key, and collects errors. A key that was read counts as known.
class Reader {
public:
  Reader(json const& file, std::string path) : file_(file), path_(std::move(path)) {}

  bool has(char const* key) const { return file_.contains(key) && !file_[key].is_null(); }
  bool left_out(char const* key) const { return !file_.contains(key); }
  /// The value of a key, which counts as known from here on; null when it is absent.
  json const& value(char const* key) {
    static json const null;
    seen_.insert(key);
    return has(key) ? file_[key] : null;
  }
  void wrong(std::string expected, std::string found) { errors_.push_back(fmt::format("{}: {}", expected, found)); }

  /// An integer from 1 to `most`. Without a default (`otherwise` > 0) the key must be there.
  std::int64_t integer(char const* key, std::int64_t most, std::int64_t otherwise = 0) {
    auto const& v = value(key);
    if (v.is_null() && otherwise > 0) return otherwise;
    if (v.is_number_integer() && v >= 1 && v <= most) return v.get<std::int64_t>();
    wrong(fmt::format("{}, a whole number from 1 to {}", key, most), found(key));
    return 1;
  }
  /// A number from `least` to `most`; `otherwise` when it is absent.
  double number(char const* key, double least, double most, double otherwise) {
    auto const& v = value(key);
    if (v.is_null()) return otherwise;
    if (v.is_number() && v.get<double>() >= least && v.get<double>() <= most) return v.get<double>();
    wrong(fmt::format("{}, a number from {} to {}", key, least, most), found(key));
    return otherwise;
  }
  bool flag(char const* key, bool otherwise) {
    auto const& v = value(key);
    if (v.is_null()) return otherwise;
    if (!v.is_boolean()) wrong(fmt::format("{}, true or false", key), found(key));
    return v.is_boolean() ? v.get<bool>() : otherwise;
  }
  std::string found(char const* key) const { return file_.contains(key) ? describe(file_[key]) : "no such key"; }

  bool good() const { return errors_.empty(); }

  /// Checks the keys with one value, passes over the ones without effect, and refuses unknown ones. Throws when there
  /// were errors.
  void finish() {
    for (auto const& row : required()) {
      if (has(row.key) && !seen_.contains(row.key) && file_[row.key] != row.value)
        wrong(fmt::format("{} = {} (p3d's model has {})", row.key, row.value.dump(), row.what), found(row.key));
      seen_.insert(row.key);
    }
    for (auto const* key : without_effect) seen_.insert(key);
    for (auto const& item : file_.items()) {
      if (seen_.contains(item.key())) continue;
      wrong("no key but those that p3d knows", json(item.key()).dump(-1, ' ', false, json::error_handler_t::replace));
    }
    if (errors_.empty()) return;
    auto const n = errors_.size();
    std::string lines;
    for (std::size_t i = 0; i < std::min<std::size_t>(n, 20); ++i) lines += "\n            " + errors_[i];
    base::refuse({.expected = "a config.json of a model that p3d computes in the same way",
                  .found = fmt::format("{} (expected: found):{}",
                                       base::counted(static_cast<std::int64_t>(n), "difference"), lines),
                  .where = path_,
                  .fix = "use a model without it; a key that does not change what the model computes may be "
                         "removed from the file"});
  }

private:
  json const& file_;
  std::string path_;
  std::set<std::string> seen_;
  std::vector<std::string> errors_;
};

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
  double const dropouts[] = {r.number("resid_pdrop", 0, 0.999, 0.1), r.number("embd_pdrop", 0, 0.999, 0.1),
                             r.number("attn_pdrop", 0, 0.999, 0.1)};
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

/// Reads rotary positions: rope_parameters (transformers 5), or rope_scaling beside rope_theta (earlier versions).
void read_rope(Reader& r, Model& m, double default_theta, std::string const& path) {
  bool const newer = r.has("rope_parameters");
  auto const* key = newer ? "rope_parameters" : "rope_scaling";
  m.rope_theta = r.number("rope_theta", 1e-300, 1e12, default_theta);
  auto const rope = r.value(key);
  r.value("rope_parameters");
  r.value("rope_scaling");
  if (newer && r.has("rope_scaling") && r.value("rope_scaling") != rope)
    r.wrong("rope_scaling like rope_parameters, or one of them", "both");
  if (rope.is_null()) return;
  if (!rope.is_object()) return r.wrong(fmt::format("{}, an object", key), r.found(key));
  Reader inner(rope, fmt::format("{}, {}", path, key));
  m.rope_theta = inner.number("rope_theta", 1e-300, 1e12, m.rope_theta);
  auto const type = inner.has("rope_type") ? inner.value("rope_type") : inner.value("type");
  inner.value("type");
  if (type == "linear") m.rope_scaling = RopeScaling::linear;
  if (type == "llama3") m.rope_scaling = RopeScaling::llama3;
  if (m.rope_scaling == RopeScaling::none && type != "default")
    inner.wrong("rope_type = \"default\", \"linear\" or \"llama3\"", type.is_null() ? "none" : describe(type));
  if (m.rope_scaling != RopeScaling::none) m.rope_scaling_factor = inner.number("factor", 1.0, 1e6, 0.0);
  if (m.rope_scaling == RopeScaling::llama3) {
    m.rope_low_freq_factor = inner.number("low_freq_factor", 1e-300, 1e6, 0.0);
    m.rope_high_freq_factor = inner.number("high_freq_factor", 1e-300, 1e6, 0.0);
    m.rope_original_seq_len = inner.integer("original_max_position_embeddings", limits::width);
    if (m.rope_low_freq_factor >= m.rope_high_freq_factor)
      inner.wrong("low_freq_factor below high_freq_factor",
                  fmt::format("{} and {}", m.rope_low_freq_factor, m.rope_high_freq_factor));
  }
  if (m.rope_scaling != RopeScaling::none && m.rope_scaling_factor == 0.0)
    inner.wrong("factor, a number from 1 on", inner.found("factor"));
  inner.finish();
}

/// The first numbers of a list, as many as give all of it when they are repeated; none where all are 1.
std::vector<std::int64_t> shortest_period(std::vector<std::int64_t> list) {
  if (std::all_of(list.begin(), list.end(), [](auto value) { return value == 1; })) return {};
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

/// Values that a family has where its file leaves a key out.
struct LlamaDefaults {
  double norm_eps = 1e-6, rope_theta = 1e4;
  bool tied = false;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: hidden / heads
  bool biases = true;         ///< false: attention_bias must be false
};

/// Reads the keys that LlamaConfig and the configurations after it share.
void read_llama(Reader& r, HuggingFaceModel& out, std::string const& path, LlamaDefaults const& defaults = {}) {
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
  read_rope(r, m, defaults.rope_theta, path);
  auto const even = std::max<std::int64_t>(1, m.hidden / m.heads);
  m.head_size = r.integer("head_dim", limits::hidden, defaults.head_dim > 0 ? defaults.head_dim : even);
  bool const attention = r.flag("attention_bias", false), mlp = r.flag("mlp_bias", false);
  if (!defaults.biases && attention)
    r.wrong("attention_bias = false (p3d has norms of queries and keys without biases)", r.found("attention_bias"));
  else if (attention != mlp)
    r.wrong("attention_bias and mlp_bias alike (model.bias is one key for all linear layers)",
            fmt::format("attention_bias = {}, mlp_bias = {}", attention, mlp));
  m.bias = m.qkv_bias = attention && mlp;
  m.tied_embeddings = r.flag("tie_word_embeddings", defaults.tied);
  m.dropout = 0.0;
  if (double const dropout = r.number("attention_dropout", 0, 0.999, 0.0); dropout > 0.0) {
    out.notes.push_back(
        fmt::format("config.json has attention_dropout = {}, of attention alone: model.dropout, of all "
                    "places, is 0 unless the input sets it",
                    dropout));
  }
  m.norm = Norm::rmsnorm;
  m.position = Position::rope;
  m.activation = Activation::swiglu;
}

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
    m.rope_layers = shortest_period(std::move(rotates));
  }
  skip_unused_window(r);
  r.value("pretraining_tp");  // SmolLM3's published file has it, its code does not read it
}

/// Reads the keys that all families with experts share; `number` names the key of the number of experts, for which
/// transformers 5 knows the name num_local_experts in all of them.
void read_experts(Reader& r, HuggingFaceModel& out, char const* number, std::int64_t experts, std::int64_t top_k) {
  auto& moe = out.model.moe;
  char const* const other = "num_local_experts";
  moe.experts = r.integer(r.has(number) ? number : other, limits::experts, experts);
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
  bool const gpt = read.family == ModelFamily::gpt2;
  bool const follows = !r.has("head_dim") && read.family != ModelFamily::qwen3;  // which has a default
  if (m.hidden % m.heads != 0 && follows)
    r.wrong(gpt ? "n_embd divisible by n_head" : "hidden_size divisible by num_attention_heads, or head_dim",
            fmt::format("{} and {}", m.hidden, m.heads));
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
    case ModelFamily::mixtral: return read_mixtral(r, out, path);
    case ModelFamily::qwen2: return read_qwen2(r, out, path);
    case ModelFamily::qwen2_moe: return read_qwen2_moe(r, out, path);
    case ModelFamily::qwen3: return read_qwen3(r, out, path);
    case ModelFamily::qwen3_moe: return read_qwen3_moe(r, out, path);
    case ModelFamily::olmoe: return read_olmoe(r, out, path);
    case ModelFamily::smollm3: return read_smollm3(r, out, path);
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
  read_family(r, out, path);
  out.model.qk_norm = row_of(out.family).qk_norm;
  if (out.family != ModelFamily::gpt2) read_layer_types(r, out.model);
  if (!out.model.moe.on()) out.model.moe.ffn = out.model.ffn;  // the default of the key in an input
  if (r.good()) require_heads(r, out);
  r.finish();
  return out;
}

HuggingFaceModel read_hugging_face_folder(std::string const& folder) {
  auto const path = (std::filesystem::path(folder) / "config.json").string();
  return read_hugging_face(
      base::read_text_file(path, "config.json of a model in Hugging Face form", path, limits::input_bytes), path);
}

}  // namespace p3d::config
