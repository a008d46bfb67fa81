// SPDX-License-Identifier: Apache-2.0
// Reads and writes the config.json of the two families whose router is DeepSeek-V3's: deepseek_v3 (DeepSeek-V3 and R1,
// Moonlight), with multi-head latent attention, and glm4_moe (GLM-4.5 and later), with grouped-query attention.
//
// DeepSeek-V3 takes mscale_all_dim of YaRN twice: in the factor of rotated queries and keys, as every YaRN does, and in
// the scale of the scores, which it multiplies by (0.1 mscale_all_dim ln(factor) + 1)^2. Example: heads of 192 with
// factor 40 and mscale_all_dim 1 have scores times 0.1352 where 1 / sqrt(192) is 0.0722; model.attention_multiplier
// holds the first. The writer looks for the mscale_all_dim that gives just this number again.
#include "config/hugging_face_families.hpp"

#include "config/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>

namespace p3d::config {

namespace {

using nlohmann::ordered_json;

/// The eps of the norms of latents, which no key of the file says (the default of DeepseekV3RMSNorm).
constexpr double latent_eps = 1e-6;

/// Bytes of a file that are looked through for the name of a tensor: the most of a header, as in room io.
constexpr std::uintmax_t most_header_bytes = 100'000'000;

/// The scale of the scores, as DeepseekV3Attention computes it.
double yarn_scale(Model const& m, double all) {
  double const log = std::log(m.rope_scaling_factor), root = 1.0 / std::sqrt(static_cast<double>(m.head_dim()));
  double const factor = log > 0.0 ? 0.1 * all * log + 1.0 : 1.0;
  return root * factor * factor;
}

/// Reads mscale_all_dim of the object of YaRN, which read_llama() has found good, as a scale of the scores.
void read_score_scale(Reader& r, Model& m) {
  auto const& rope = r.value(r.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (m.rope_scaling != RopeScaling::yarn || !rope.is_object() || !rope.contains("mscale_all_dim")) return;
  auto const& all = rope["mscale_all_dim"];
  double const scale = all.is_number() ? yarn_scale(m, all.get<double>()) : 0.0;
  if (scale != yarn_scale(m, 0.0)) m.attention_multiplier = scale;
}

/// Passes over keys of training, and notes what is not as written.
void read_balance(Reader& r, HuggingFaceModel& out) {
  r.value("seq_aux");
  if (r.number("aux_loss_alpha", 0.0, 1e6, 0.0) > 0.0)
    out.notes.push_back(
        "config.json has aux_loss_alpha, the factor of a balancing loss in training: p3d has none unless the input "
        "sets model.moe.aux_loss");
}

/// Reads the groups of experts; one group is none.
void read_groups(Reader& r, Moe& moe, std::int64_t groups, std::int64_t chosen) {
  groups = r.integer("n_group", limits::experts, groups);
  chosen = r.integer("topk_group", limits::experts, chosen);
  auto const size = moe.experts / groups;
  if (moe.experts % groups != 0 || size < 2)
    return r.wrong("n_group that divides n_routed_experts into groups of at least 2",
                   fmt::format("{} for {}", groups, moe.experts));
  if (chosen > groups || chosen * size < moe.top_k)
    return r.wrong("topk_group of at most n_group, with num_experts_per_tok experts in the chosen groups",
                   fmt::format("{} of {} groups of {} for {}", chosen, groups, size, moe.top_k));
  if (groups > 1) moe.groups = groups, moe.group_top_k = chosen;
}

/// Values of DeepSeek-V3's keys of experts where a file leaves them out.
struct ExpertDefaults {
  std::int64_t experts, top_k, ffn, groups, group_top_k, first_dense;
  double scale;
};

/// Reads the experts of a model whose router has sigmoid scores and biases of the choice.
void read_biased_experts(Reader& r, HuggingFaceModel& out, ExpertDefaults const& defaults) {
  auto& m = out.model;
  auto& moe = m.moe;
  read_experts(r, out, "n_routed_experts", defaults.experts, defaults.top_k);
  moe.ffn = r.integer("moe_intermediate_size", limits::width, defaults.ffn);
  auto const shared = r.integer("n_shared_experts", limits::experts, 1);
  moe.shared_ffn = shared * moe.ffn;
  if (moe.shared_ffn > limits::width) r.wrong("shared experts of fewer columns", fmt::format("{}", moe.shared_ffn));
  moe.score = RouterScore::sigmoid;
  moe.choice_bias = true;
  moe.normalize = r.flag("norm_topk_prob", r.left_out("norm_topk_prob"));  // null is false
  moe.scale = r.number("routed_scaling_factor", 1e-300, 1e6, defaults.scale);
  moe.first_dense = r.count("first_k_dense_replace", limits::layers, defaults.first_dense);
  read_groups(r, moe, defaults.groups, defaults.group_top_k);
  for (auto const& [key, only] : {std::pair{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}})
    if (r.has(key) && r.value(key) != only) r.wrong(fmt::format("{} = \"{}\"", key, only), r.found(key));
  if (r.integer("moe_layer_freq", limits::layers, 1) != 1)
    r.wrong("moe_layer_freq = 1 (every layer behind the first dense ones has experts)", r.found("moe_layer_freq"));
  read_balance(r, out);
  for (char const* key : {"num_nextn_predict_layers", "num_mtp_layers"})  // published files, and transformers 5
    if (r.has(key)) out.prediction_layers = r.count(key, limits::layers, 0);
  r.value("ep_size");
  if (moe.first_dense < m.layers) return;
  if (out.family != ModelFamily::deepseek_v3) return r.wrong("a layer with experts", "none");
  moe = {};  // a dense model with latent attention
}

void read_sizes_of_latents(Reader& r, Model& m) {
  constexpr std::int64_t default_q = 1536, default_kv = 512, default_nope = 128, default_rope = 64, default_v = 128;
  auto& a = m.mla;
  a.kv_lora_rank = r.integer("kv_lora_rank", limits::hidden, default_kv);
  bool const from_latent = r.has("q_lora_rank") || r.left_out("q_lora_rank");  // null: from the residual stream
  a.q_lora_rank = from_latent ? r.integer("q_lora_rank", limits::hidden, default_q) : 0;
  r.value("q_lora_rank");
  a.qk_nope_head_dim = r.integer("qk_nope_head_dim", limits::hidden, default_nope);
  a.qk_rope_head_dim = r.integer("qk_rope_head_dim", limits::hidden, default_rope);
  a.v_head_dim = r.integer("v_head_dim", limits::hidden, default_v);
  a.norm_eps = latent_eps;
  if (a.qk_rope_head_dim % 2 != 0)
    r.wrong("qk_rope_head_dim, an even number, whose pairs rotate", fmt::format("{}", a.qk_rope_head_dim));
  // transformers writes these two, which follow.
  if (r.has("head_dim") && m.head_size != a.qk_rope_head_dim)
    r.wrong("head_dim = qk_rope_head_dim, as transformers has it", r.found("head_dim"));
  m.head_size = a.qk_nope_head_dim + a.qk_rope_head_dim;
  if (r.integer("qk_head_dim", 2 * limits::hidden, m.head_size) != m.head_size)
    r.wrong("qk_head_dim = qk_nope_head_dim + qk_rope_head_dim", r.found("qk_head_dim"));
}

/// The next bytes of a file, at most so many; fewer where it ends.
std::string next_bytes(std::ifstream& in, std::uintmax_t most) {
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

/// True when the files of a folder seem to have a tensor of this name: room io reads them later, and says what is
/// wrong.
bool has_tensor(std::filesystem::path const& folder, std::string const& name) {
  auto const file = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  std::error_code unknown;
  bool const one = std::filesystem::exists(file, unknown);
  auto size = std::filesystem::file_size(one ? file : index, unknown);
  if (unknown) return false;
  std::ifstream in(one ? file : index, std::ios::binary);
  if (one) {  // the header's length stands in front of it, in 8 bytes from the lowest on
    auto const bytes = next_bytes(in, 8);
    std::uintmax_t length = 0;
    for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte)
      length = length << 8U | static_cast<unsigned char>(*byte);
    size = std::min(size, length);
  }
  return next_bytes(in, std::min(size, most_header_bytes)).find('"' + name + '"') != std::string::npos;
}

}  // namespace

void read_deepseek_v3(Reader& r, HuggingFaceModel& out, std::string const& path) {
  auto& m = out.model;
  if (r.has("quantization_config")) {
    r.wrong(
        "no quantization_config: fp8 weights are converted to bf16 first (fp8_cast_bf16.py of DeepSeek-V3), and "
        "the key removed",
        r.found("quantization_config"));
  }
  r.value("quantization_config");
  read_llama(r, out, path, {.kv_heads = 128, .biases = false, .unbiased = "latent attention"});
  if (m.kv_heads != m.heads)
    r.wrong("num_key_value_heads = num_attention_heads (latent attention)",
            fmt::format("{} and {}", m.kv_heads, m.heads));
  read_sizes_of_latents(r, m);
  bool const neighbours = r.flag("rope_interleave", r.left_out("rope_interleave"));  // null is false
  m.rope_pairs = neighbours ? RopePairs::neighbours : RopePairs::halves;
  read_score_scale(r, m);
  read_biased_experts(
      r, out, {.experts = 256, .top_k = 8, .ffn = 2048, .groups = 8, .group_top_k = 4, .first_dense = 3, .scale = 2.5});
}

void read_glm4_moe(Reader& r, HuggingFaceModel& out, std::string const& path) {
  read_llama(r, out, path,
             {.norm_eps = 1e-5, .kv_heads = 8, .qkv_biases = true, .biased = false, .rope_fraction = 0.5});
  out.model.qk_norm = r.flag("use_qk_norm", false) ? QkNorm::head : QkNorm::none;
  read_biased_experts(
      r, out, {.experts = 128, .top_k = 8, .ffn = 1408, .groups = 1, .group_top_k = 1, .first_dense = 1, .scale = 1.0});
}

void take_prediction_layers(HuggingFaceModel& out, std::string const& folder) {
  if (out.prediction_layers == 0) return;
  // Without the linear of its two inputs it is no such layer.
  if (has_tensor(folder, fmt::format("model.layers.{}.eh_proj.weight", out.model.layers))) {
    out.model.mtp.depth = out.prediction_layers;
    return;
  }
  out.notes.push_back(
      fmt::format("config.json has num_nextn_predict_layers = {}, layers of multi-token prediction behind the {} of "
                  "the model: the files have no tensors of them, so they are left out",
                  out.prediction_layers, out.model.layers));
}

std::optional<double> mscale_all_dim(Model const& m) {
  double const scale = m.attention_scale(), plain = yarn_scale(m, 0.0);
  if (scale == plain) return 0.0;
  double const log = m.rope_scaling == RopeScaling::yarn ? std::log(m.rope_scaling_factor) : 0.0;
  double const near = log > 0.0 ? (std::sqrt(scale / plain) - 1.0) / (0.1 * log) : 0.0;
  if (!(near > 0.0)) return {};
  // Numbers of few digits first, which a file once had, then the neighbours of the solution.
  for (int digits = 1; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    double const all = std::strtod(fmt::format("{:.{}g}", near, digits).c_str(), nullptr);
    if (yarn_scale(m, all) == scale) return all;
  }
  constexpr int neighbours = 64;
  for (double const end : {0.0, 2.0 * near}) {
    double all = near;
    for (int i = 0; i < neighbours; ++i) {
      all = std::nextafter(all, end);
      if (yarn_scale(m, all) == scale) return all;
    }
  }
  return {};
}

void want_latent_attention(Model const& m, Want const& want) {
  want(m.mla.on(), "mla.kv_lora_rank", "0");
  want(m.mla.norm_eps == latent_eps, "mla.norm_eps", fmt::format("{}", m.mla.norm_eps));
  want(m.kv_heads == m.heads, "kv_heads", fmt::format("{} (heads = {})", m.kv_heads, m.heads));
  want(mscale_all_dim(m).has_value(), "attention_multiplier", fmt::format("{}", m.attention_multiplier));
}

void want_biased_experts(Model const& m, ModelFamily family, Want const& want) {
  auto const& moe = m.moe;
  auto const number = [](auto n) { return fmt::format("{}", n); };
  if (!moe.on()) return want(family == ModelFamily::deepseek_v3, "moe.experts", "0");
  want(moe.score == RouterScore::sigmoid, "moe.score", to_string(moe.score));
  want(moe.choice_bias, "moe.choice_bias", "false");
  want(!moe.bias, "moe.bias", "true");
  want(moe.capacity_factor == 0.0, "moe.capacity_factor", number(moe.capacity_factor));
  want(!moe.shared_gate, "moe.shared_gate", "true");
  want(moe.shared_ffn > 0 && moe.shared_ffn % moe.ffn == 0, "moe.shared_ffn", number(moe.shared_ffn));
  want(moe.every == 1, "moe.every", number(moe.every));
  // transformers takes the best two experts of each group.
  auto const groups = moe.grouped() ? moe.groups : 1;
  want(moe.experts >= 2 * groups, "moe.groups", fmt::format("{} (experts = {})", moe.groups, moe.experts));
}

void write_latent_attention(Model const& m, ordered_json& out) {
  out.erase("head_dim");
  out["q_lora_rank"] = m.mla.q_lora_rank > 0 ? ordered_json(m.mla.q_lora_rank) : ordered_json(nullptr);
  out["kv_lora_rank"] = m.mla.kv_lora_rank;
  out["qk_nope_head_dim"] = m.mla.qk_nope_head_dim;
  out["qk_rope_head_dim"] = m.mla.qk_rope_head_dim;
  out["v_head_dim"] = m.mla.v_head_dim;
  out["rope_interleave"] = m.rope_pairs == RopePairs::neighbours;
  out["attention_bias"] = false;
  if (double const all = mscale_all_dim(m).value_or(0.0); all > 0.0) {
    auto& rope = out["rope_scaling"];
    rope["mscale_all_dim"] = all;
    if (m.rope_attention_factor != 1.0) return;
    rope["mscale"] = all;  // as published files say the factor 1
    rope.erase("attention_factor");
  }
}

void write_biased_experts(Model const& m, ordered_json& out) {
  bool const dense = !m.moe.on();
  out["first_k_dense_replace"] = dense ? m.all_layers() : m.moe.first_dense;
  out["num_nextn_predict_layers"] = m.mtp.depth;
  if (dense) return;
  out["n_routed_experts"] = m.moe.experts;
  out["num_experts_per_tok"] = m.moe.top_k;
  out["moe_intermediate_size"] = m.moe.ffn;
  out["n_shared_experts"] = m.moe.shared_ffn / m.moe.ffn;
  out["n_group"] = m.moe.grouped() ? m.moe.groups : 1;
  out["topk_group"] = m.moe.grouped() ? m.moe.group_top_k : 1;
  out["norm_topk_prob"] = m.moe.normalize;
  out["routed_scaling_factor"] = m.moe.scale;
  out["scoring_func"] = "sigmoid";
  out["topk_method"] = "noaux_tc";
}

}  // namespace p3d::config
