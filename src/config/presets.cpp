// SPDX-License-Identifier: Apache-2.0
// The table of known models. Sizes from: GPT-2 (Radford et al. 2019, table 2, with the 12 heads and the like of the
// published code), GPT-3 (Brown et al. 2020, table 2.1; 13B with hidden 5120, since the printed 5140 is not divisible
// by its 40 heads), Llama 2 (Touvron et al. 2023) and Llama 3 (Dubey et al. 2024, table 3),
// Qwen2.5 (arXiv 2412.15115, and its config.json), Mistral-Nemo-Base-2407 and SmolLM3-3B (their config.json),
// Qwen3 (arXiv 2505.09388, tables 1 and 2, and its config.json), OLMoE-1B-7B-0924, OLMo-2-0425-1B, OLMo-2-1124-7B,
// granite-3.1-2b-base, GLM-4-9B-0414, Gemma 2 2B and 9B, Gemma 3 270M and 1B, Phi-4, DeepSeek-V3, Moonlight-16B-A3B,
// GLM-4.5-Air and gpt-oss (their config.json).

#include "config/presets.hpp"

#include <p3d/config/parse.hpp>

#include <cmath>

namespace p3d::config {

namespace {

constexpr auto gpt = Preset::Family::gpt;
constexpr auto llama = Preset::Family::llama;

// The models with experts: those that the head of this file names, Mixtral 8x7B (Jiang et al., arXiv 2401.04088, table
// 1; the loss's factor is that of its config.json), and small models of the kinds of Mixtral, Qwen1.5-MoE (softmax over
// all experts, gated shared experts) and DeepSeek-V3 (arXiv 2412.19437: sigmoid, groups, biases that balance, a first
// dense layer; without latent attention).
constexpr Moe moe_of(std::int64_t experts, std::int64_t top_k, std::int64_t ffn, double aux_coefficient = 0.01) {
  Moe moe;
  moe.aux_coefficient = aux_coefficient;
  moe.experts = experts, moe.top_k = top_k, moe.ffn = ffn;
  moe.aux_loss = AuxLoss::global;
  return moe;
}
constexpr Moe mixtral_moe(std::int64_t ffn) { return moe_of(8, 2, ffn, 0.02); }
// OLMoE (Muennighoff et al., arXiv 2409.02060, section 2): losses of balance and of the router's logits.
constexpr Moe olmoe_moe() {
  auto moe = moe_of(64, 8, 1024, 0.01);
  moe.normalize = false;
  moe.z_coefficient = 0.001;
  return moe;
}
constexpr Moe qwen_moe_tiny() {
  auto moe = moe_of(16, 4, 48, 0.001);
  moe.shared_ffn = 192, moe.shared_gate = true;
  moe.normalize = false;
  return moe;
}
/// The experts of DeepSeek-V3 and of models after it, without their numbers.
constexpr Moe choice_bias_moe(std::int64_t experts, std::int64_t top_k, std::int64_t ffn) {
  auto moe = moe_of(experts, top_k, ffn);
  moe.first_dense = 1;
  moe.shared_ffn = ffn;
  moe.score = RouterScore::sigmoid;
  moe.bias_update_rate = 0.001;
  moe.aux_loss = AuxLoss::sequence, moe.aux_coefficient = 0.0001;
  return moe;
}
constexpr Moe deepseek_moe_tiny() {
  auto moe = choice_bias_moe(16, 4, 48);
  moe.scale = 2.5;
  moe.groups = 4, moe.group_top_k = 2;
  return moe;
}
constexpr Moe deepseek_v3_moe() {
  auto moe = choice_bias_moe(256, 8, 2048);
  moe.first_dense = 3;
  moe.scale = 2.5;
  moe.groups = 8, moe.group_top_k = 4;
  return moe;
}
constexpr Moe moonlight_moe() {
  auto moe = choice_bias_moe(64, 6, 1408);
  moe.shared_ffn = 2816;
  moe.scale = 2.446;
  return moe;
}
constexpr Moe gpt_oss_moe(std::int64_t experts) {
  auto moe = moe_of(experts, 4, 2880, 0.9);
  moe.bias = true;
  return moe;
}
constexpr Moe glm_moe() { return choice_bias_moe(128, 8, 1408); }

// Functions that set what the models of a kind have besides their sizes.
constexpr double small_eps = 1e-6;
void qwen2(Model& m) { m.norm_eps = small_eps; }
void qwen3(Model& m) { m.norm_eps = small_eps, m.qk_norm = QkNorm::head; }
void smollm3(Model& m) {
  m.norm_eps = small_eps;
  // GCC 12.2 with -O3 -march=native makes 1, 1, 1, 1 of the list {1, 1, 1, 0} on processors with AVX-512.
  m.rope_layers.assign(4, 1);
  m.rope_layers.back() = 0;
}
void olmoe(Model& m) { m.qk_norm = QkNorm::full; }
void olmo2(Model& m) {
  m.norm_eps = small_eps, m.qk_norm = QkNorm::full;
  m.norm_placement = NormPlacement::post;
}
void granite(Model& m) {
  m.embedding_multiplier = 12.0, m.attention_multiplier = 0.015625, m.residual_multiplier = 0.22;
  m.logits_scaling = 8.0;
}
void glm4(Model& m) {
  m.norm_placement = NormPlacement::sandwich;
  m.rope_fraction = 0.5, m.rope_pairs = RopePairs::neighbours;
}
void latents(Model& m, std::int64_t q, std::int64_t kv, std::int64_t nope, std::int64_t rope, std::int64_t v) {
  m.mla.q_lora_rank = q, m.mla.kv_lora_rank = kv;
  m.mla.qk_nope_head_dim = nope, m.mla.qk_rope_head_dim = rope, m.mla.v_head_dim = v;
  m.rope_pairs = RopePairs::neighbours;
}
void deepseek_v3(Model& m) {
  m.norm_eps = small_eps;
  latents(m, 1536, 512, 128, 64, 128);
  m.rope_scaling = RopeScaling::yarn, m.rope_scaling_factor = 40.0, m.rope_original_seq_len = 4096;
  m.rope_attention_factor = 1.0;
  double const factor = 0.1 * std::log(m.rope_scaling_factor) + 1.0;  // mscale_all_dim 1 (hugging_face_deepseek.cpp)
  m.attention_multiplier = 1.0 / std::sqrt(192.0) * factor * factor;
}
void moonlight(Model& m) { latents(m, 0, 512, 128, 64, 128); }
void deepseek_v3_tiny(Model& m) {
  m.norm_eps = small_eps;
  latents(m, 48, 24, 8, 4, 8);
}
void glm_air(Model& m) { m.rope_fraction = 0.5; }
void gpt_oss(Model& m) {
  m.bias = true, m.attention_sinks = true, m.activation = Activation::swiglu_clamped;
  m.window = {128, 0};
  m.rope_scaling = RopeScaling::yarn, m.rope_scaling_factor = 32.0, m.rope_original_seq_len = 4096;
  m.rope_truncate = false;
}
void apertus(Model& m) {
  m.qk_norm = QkNorm::head, m.activation = Activation::xielu;
  m.rope_scaling = RopeScaling::llama3, m.rope_scaling_factor = 8.0, m.rope_original_seq_len = 8192;
}
void phi4_mini(Model& m) {
  m.rope_fraction = 0.75, m.window = {262144};
  m.rope_scaling = RopeScaling::longrope, m.rope_scaling_factor = 32.0, m.rope_original_seq_len = 4096;
  m.rope_short_factors.assign(48, 1.0);
  m.rope_long_factors = {1.0,         1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817,
                         2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023,
                         4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,
                         10.4687158,  11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
                         22.90118105, 25.61086418, 28.64115884, 32.03,       32.1,        32.13,       32.23,
                         32.6,        32.61,       32.64,       32.66,       32.7,        32.71,       32.93,
                         32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
}
void gemma(Model& m) {
  m.norm_eps = small_eps;
  m.norm_placement = NormPlacement::sandwich, m.norm_offset = 1, m.activation = Activation::geglu;
  m.embedding_multiplier = std::sqrt(static_cast<double>(m.hidden));
}
void gemma2(Model& m) {
  gemma(m);
  m.attention_softcap = 50.0, m.logits_softcap = 30.0;
  m.window = {4096, 0};
}
void gemma3(Model& m) {
  gemma(m);
  m.qk_norm = QkNorm::head;
  m.window = {512, 512, 512, 512, 512, 0}, m.rope_local_theta = 1e4;
}

constexpr Preset table[] = {
    // name        family  hidden layers heads kv  ffn    seq   vocab   rope_theta tied
    {"gpt2-tiny", gpt, 96, 8, 12, 0, 0, 64, 256, 1e4, true},
    {"gpt2-124m", gpt, 768, 12, 12, 0, 0, 1024, 50257, 1e4, true},
    {"gpt2-350m", gpt, 1024, 24, 16, 0, 0, 1024, 50257, 1e4, true},
    {"gpt2-774m", gpt, 1280, 36, 20, 0, 0, 1024, 50257, 1e4, true},
    {"gpt2-1558m", gpt, 1600, 48, 25, 0, 0, 1024, 50257, 1e4, true},
    {"gpt3-6.7b", gpt, 4096, 32, 32, 0, 0, 2048, 50257, 1e4, true},
    {"gpt3-13b", gpt, 5120, 40, 40, 0, 0, 2048, 50257, 1e4, true},
    {"gpt3-175b", gpt, 12288, 96, 96, 0, 0, 2048, 50257, 1e4, true},
    {"llama-tiny", llama, 96, 8, 12, 6, 288, 64, 256, 1e4, false},
    {"llama-124m", llama, 768, 12, 12, 0, 2048, 1024, 50257, 1e4, true},
    {"llama2-7b", llama, 4096, 32, 32, 0, 11008, 4096, 32000, 1e4, false},
    {"llama2-13b", llama, 5120, 40, 40, 0, 13824, 4096, 32000, 1e4, false},
    {"llama2-70b", llama, 8192, 80, 64, 8, 28672, 4096, 32000, 1e4, false},
    {"llama3-8b", llama, 4096, 32, 32, 8, 14336, 8192, 128256, 5e5, false},
    {"llama3-70b", llama, 8192, 80, 64, 8, 28672, 8192, 128256, 5e5, false},
    {"mistral-nemo-12b", llama, 5120, 40, 32, 8, 14336, 131072, 131072, 1e6, false, nullptr, {}, 128},
    {"qwen2.5-0.5b", llama, 896, 24, 14, 2, 4864, 32768, 151936, 1e6, true, qwen2, {}, 0, true},
    {"qwen2.5-7b", llama, 3584, 28, 28, 4, 18944, 131072, 152064, 1e6, false, qwen2, {}, 0, true},
    {"smollm3-3b", llama, 2048, 36, 16, 4, 11008, 65536, 128256, 5e6, true, smollm3},
    {"qwen3-0.6b", llama, 1024, 28, 16, 8, 3072, 40960, 151936, 1e6, true, qwen3, {}, 128},
    {"qwen3-8b", llama, 4096, 36, 32, 8, 12288, 40960, 151936, 1e6, false, qwen3, {}, 128},
    {"qwen3-30b-a3b", llama, 2048, 48, 32, 4, 6144, 40960, 151936, 1e6, false, qwen3, moe_of(128, 8, 768, 0.001), 128},
    {"olmo2-1b", llama, 2048, 16, 16, 0, 8192, 4096, 100352, 5e5, false, olmo2},
    {"olmo2-7b", llama, 4096, 32, 32, 0, 11008, 4096, 100352, 5e5, false, olmo2},
    {"granite3.1-2b", llama, 2048, 40, 32, 8, 8192, 131072, 49155, 5e6, true, granite},
    {"glm4-9b", llama, 4096, 40, 32, 2, 13696, 32768, 151552, 1e4, false, glm4, {}, 128, true},
    {"gemma2-2b", llama, 2304, 26, 8, 4, 9216, 8192, 256000, 1e4, true, gemma2, {}, 256},
    {"gemma2-9b", llama, 3584, 42, 16, 8, 14336, 8192, 256000, 1e4, true, gemma2, {}, 256},
    {"gemma3-270m", llama, 640, 18, 4, 1, 2048, 32768, 262144, 1e6, true, gemma3, {}, 256},
    {"gemma3-1b", llama, 1152, 26, 4, 1, 6912, 32768, 262144, 1e6, true, gemma3, {}, 256},
    {"phi4", llama, 5120, 40, 40, 10, 17920, 16384, 100352, 2.5e5, false},
    {"phi4-mini", llama, 3072, 32, 24, 8, 8192, 131072, 200064, 1e4, true, phi4_mini},
    {"apertus-8b", llama, 4096, 32, 32, 8, 21504, 65536, 131072, 1.2e7, false, apertus},
    {"apertus-70b", llama, 8192, 80, 64, 8, 43008, 65536, 131072, 1.2e7, false, apertus},
    {"olmoe-1b-7b", llama, 2048, 16, 16, 0, 1024, 4096, 50304, 1e4, false, olmoe, olmoe_moe()},
    {"mixtral-tiny", llama, 96, 8, 12, 6, 192, 64, 256, 1e6, false, nullptr, mixtral_moe(192)},
    {"mixtral-8x7b", llama, 4096, 32, 32, 8, 14336, 32768, 32000, 1e6, false, nullptr, mixtral_moe(14336)},
    {"qwen-moe-tiny", llama, 96, 8, 12, 6, 288, 64, 256, 1e6, false, nullptr, qwen_moe_tiny()},
    {"deepseek-moe-tiny", llama, 96, 8, 12, 6, 288, 64, 256, 1e4, false, nullptr, deepseek_moe_tiny()},
    {"deepseek-v3-tiny", llama, 96, 8, 12, 0, 288, 64, 256, 1e4, false, deepseek_v3_tiny, deepseek_moe_tiny()},
    {"deepseek-v3", llama, 7168, 61, 128, 0, 18432, 163840, 129280, 1e4, false, deepseek_v3, deepseek_v3_moe()},
    {"moonlight-16b-a3b", llama, 2048, 27, 16, 0, 11264, 8192, 163840, 5e4, false, moonlight, moonlight_moe()},
    {"glm4.5-air", llama, 4096, 46, 96, 8, 10944, 131072, 151552, 1e6, false, glm_air, glm_moe(), 128, true},
    {"gpt-oss-20b", llama, 2880, 24, 64, 8, 2880, 131072, 201088, 1.5e5, false, gpt_oss, gpt_oss_moe(32), 64, true},
    {"gpt-oss-120b", llama, 2880, 36, 64, 8, 2880, 131072, 201088, 1.5e5, false, gpt_oss, gpt_oss_moe(128), 64, true},
};

}  // namespace

Preset const* find_preset(std::string_view name) {
  for (auto const& preset : table) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

void apply(Preset const& preset, Model& model) {
  bool const is_gpt = preset.family == gpt;
  model.preset = preset.name;
  model.vocab_size = preset.vocab_size;
  model.hidden = preset.hidden;
  model.layers = preset.layers;
  model.heads = preset.heads;
  if (preset.kv_heads > 0) model.kv_heads = preset.kv_heads;
  if (preset.head_dim > 0) model.head_size = preset.head_dim;
  if (preset.qkv_bias) model.qkv_bias = true;
  if (preset.ffn > 0) model.ffn = preset.ffn;
  model.seq_len = preset.seq_len;
  model.norm = is_gpt ? Norm::layernorm : Norm::rmsnorm;
  model.position = is_gpt ? Position::learned : Position::rope;
  model.activation = is_gpt ? Activation::gelu : Activation::swiglu;
  model.bias = is_gpt;
  model.tied_embeddings = preset.tied;
  model.dropout = 0.0;
  model.rope_theta = preset.rope_theta;
  model.norm_eps = 1e-5;
  model.moe = preset.moe;
  if (preset.more) preset.more(model);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> out;
  for (auto const& preset : table) out.emplace_back(preset.name);
  return out;
}

}  // namespace p3d::config
