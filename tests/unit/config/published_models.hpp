// SPDX-License-Identifier: Apache-2.0
#pragma once
// The config.json files of published models, as far as they say what is computed, and their variations.

#include <nlohmann/json.hpp>

#include <utility>

namespace p3d::config::test {

using Json = nlohmann::json;

inline Json gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 50257}, {"n_positions", 1024}, {"n_embd", 768},
          {"n_layer", 12},        {"n_head", 12},        {"n_inner", nullptr},  {"activation_function", "gelu_new"},
          {"resid_pdrop", 0.1},   {"embd_pdrop", 0.1},   {"attn_pdrop", 0.1},   {"layer_norm_epsilon", 1e-5}};
}
inline Json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 128256},
          {"max_position_embeddings", 131072},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"rope_theta", 500000.0},
          {"attention_bias", false},
          {"mlp_bias", false}};
}
inline Json with(Json file, char const* key, Json value) {
  file[key] = std::move(value);
  return file;
}
inline Json without(Json file, char const* key) {
  file.erase(key);
  return file;
}
/// As Mistral-7B-v0.1.
inline Json mistral() {
  return {{"model_type", "mistral"},     {"vocab_size", 32000},        {"max_position_embeddings", 32768},
          {"hidden_size", 4096},         {"intermediate_size", 14336}, {"num_hidden_layers", 32},
          {"num_attention_heads", 32},   {"num_key_value_heads", 8},   {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},        {"rope_theta", 10000.0},      {"sliding_window", 4096},
          {"tie_word_embeddings", false}};
}

/// As Mixtral-8x7B-v0.1.
inline Json mixtral() {
  auto file = with(with(mistral(), "model_type", "mixtral"), "sliding_window", nullptr);
  file.update({{"rope_theta", 1e6},
               {"num_local_experts", 8},
               {"num_experts_per_tok", 2},
               {"output_router_logits", false},
               {"router_aux_loss_coef", 0.02}});
  return file;
}
/// Qwen1.5-MoE-A2.7B, but for the biases of its attention.
inline Json qwen2_moe() {
  return {{"model_type", "qwen2_moe"},
          {"vocab_size", 151936},
          {"max_position_embeddings", 8192},
          {"hidden_size", 2048},
          {"intermediate_size", 5632},
          {"num_hidden_layers", 24},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 16},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"use_sliding_window", false},
          {"sliding_window", 32768},
          {"max_window_layers", 21},
          {"decoder_sparse_step", 1},
          {"moe_intermediate_size", 1408},
          {"shared_expert_intermediate_size", 5632},
          {"num_experts_per_tok", 4},
          {"num_experts", 60},
          {"norm_topk_prob", false},
          {"qkv_bias", false},
          {"tie_word_embeddings", false}};
}
/// As Mistral-Nemo-Base-2407: heads of 128 where hidden / heads is 160.
inline Json nemo() {
  auto file = mistral();
  file.update({{"vocab_size", 131072},
               {"max_position_embeddings", 131072},
               {"hidden_size", 5120},
               {"num_hidden_layers", 40},
               {"head_dim", 128},
               {"rope_theta", 1000000.0},
               {"sliding_window", nullptr}});
  return file;
}
/// As Qwen2.5-0.5B.
inline Json qwen2() {
  return {{"model_type", "qwen2"},      {"vocab_size", 151936},        {"max_position_embeddings", 32768},
          {"hidden_size", 896},         {"intermediate_size", 4864},   {"num_hidden_layers", 24},
          {"num_attention_heads", 14},  {"num_key_value_heads", 2},    {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},       {"rope_theta", 1000000.0},     {"sliding_window", 32768},
          {"max_window_layers", 24},    {"use_sliding_window", false}, {"use_mrope", false},
          {"tie_word_embeddings", true}};
}
/// As Qwen3-0.6B.
inline Json qwen3() {
  return {{"model_type", "qwen3"},       {"vocab_size", 151936},      {"max_position_embeddings", 40960},
          {"hidden_size", 1024},         {"intermediate_size", 3072}, {"num_hidden_layers", 28},
          {"num_attention_heads", 16},   {"num_key_value_heads", 8},  {"head_dim", 128},
          {"hidden_act", "silu"},        {"rms_norm_eps", 1e-6},      {"rope_theta", 1000000},
          {"rope_scaling", nullptr},     {"sliding_window", nullptr}, {"max_window_layers", 28},
          {"use_sliding_window", false}, {"attention_bias", false},   {"attention_dropout", 0.0},
          {"tie_word_embeddings", true}};
}
/// As Qwen3-30B-A3B.
inline Json qwen3_moe() {
  auto file = qwen3();
  file.update({{"model_type", "qwen3_moe"},
               {"hidden_size", 2048},
               {"intermediate_size", 6144},
               {"num_hidden_layers", 48},
               {"num_attention_heads", 32},
               {"num_key_value_heads", 4},
               {"max_window_layers", 48},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", Json::array()},
               {"moe_intermediate_size", 768},
               {"norm_topk_prob", true},
               {"num_experts", 128},
               {"num_experts_per_tok", 8},
               {"output_router_logits", false},
               {"router_aux_loss_coef", 0.001},
               {"tie_word_embeddings", false}});
  return file;
}
/// As OLMoE-1B-7B-0924.
inline Json olmoe() {
  return {{"model_type", "olmoe"},
          {"vocab_size", 50304},
          {"max_position_embeddings", 4096},
          {"hidden_size", 2048},
          {"intermediate_size", 1024},
          {"num_hidden_layers", 16},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 16},
          {"clip_qkv", nullptr},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"norm_topk_prob", false},
          {"num_experts", 64},
          {"num_experts_per_tok", 8},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.01},
          {"tie_word_embeddings", false}};
}
/// As OLMo-2-0425-1B: norms behind the sub-layers.
inline Json olmo2() {
  return {{"model_type", "olmo2"},       {"vocab_size", 100352},      {"max_position_embeddings", 4096},
          {"hidden_size", 2048},         {"intermediate_size", 8192}, {"num_hidden_layers", 16},
          {"num_attention_heads", 16},   {"num_key_value_heads", 16}, {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},        {"rope_theta", 500000},      {"rope_scaling", nullptr},
          {"attention_bias", false},     {"attention_dropout", 0.0},  {"initializer_range", 0.02},
          {"tie_word_embeddings", false}};
}
/// As granite-3.1-2b-base: multipliers.
inline Json granite() {
  return {{"model_type", "granite"},
          {"vocab_size", 49155},
          {"max_position_embeddings", 131072},
          {"hidden_size", 2048},
          {"intermediate_size", 8192},
          {"num_hidden_layers", 40},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 5000000.0},
          {"rope_scaling", nullptr},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", 0.1},
          {"attention_multiplier", 0.015625},
          {"embedding_multiplier", 12.0},
          {"residual_multiplier", 0.22},
          {"logits_scaling", 8.0},
          {"tie_word_embeddings", true}};
}
/// As GLM-4-9B-0414: norms on both sides, half of each head rotates in pairs of neighbours.
inline Json glm4() {
  return {{"model_type", "glm4"},         {"vocab_size", 151552},       {"max_position_embeddings", 32768},
          {"hidden_size", 4096},          {"intermediate_size", 13696}, {"num_hidden_layers", 40},
          {"num_attention_heads", 32},    {"num_key_value_heads", 2},   {"head_dim", 128},
          {"hidden_act", "silu"},         {"rms_norm_eps", 1e-5},       {"rope_theta", 10000.0},
          {"partial_rotary_factor", 0.5}, {"attention_bias", true},     {"attention_dropout", 0.0},
          {"tie_word_embeddings", false}};
}
/// As gemma-2-2b: caps of scores and logits, and a window in every second layer.
inline Json gemma2() {
  return {{"model_type", "gemma2"},
          {"architectures", {"Gemma2ForCausalLM"}},
          {"vocab_size", 256000},
          {"max_position_embeddings", 8192},
          {"hidden_size", 2304},
          {"intermediate_size", 9216},
          {"num_hidden_layers", 26},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"head_dim", 256},
          {"hidden_act", "gelu_pytorch_tanh"},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"query_pre_attn_scalar", 256},
          {"sliding_window", 4096},
          {"attn_logit_softcapping", 50.0},
          {"final_logit_softcapping", 30.0},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"cache_implementation", "hybrid"}};
}
/// As gemma-3-1b-pt: every sixth layer attends to all tokens.
inline Json gemma3() {
  return {{"model_type", "gemma3_text"},
          {"vocab_size", 262144},
          {"max_position_embeddings", 32768},
          {"hidden_size", 1152},
          {"intermediate_size", 6912},
          {"num_hidden_layers", 26},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 1},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000},
          {"rope_local_base_freq", 10000},
          {"rope_scaling", nullptr},
          {"query_pre_attn_scalar", 256},
          {"sliding_window", 512},
          {"sliding_window_pattern", 6},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"cache_implementation", "hybrid"}};
}
/// As SmolLM3-3B: every fourth layer does not rotate.
inline Json smollm3() {
  Json file{{"model_type", "smollm3"},
            {"vocab_size", 128256},
            {"max_position_embeddings", 65536},
            {"hidden_size", 2048},
            {"intermediate_size", 11008},
            {"num_hidden_layers", 36},
            {"num_attention_heads", 16},
            {"num_key_value_heads", 4},
            {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 5000000.0},
            {"rope_scaling", nullptr},
            {"no_rope_layer_interval", 4},
            {"pretraining_tp", 2},
            {"use_sliding_window", false},
            {"sliding_window", nullptr},
            {"max_window_layers", 28},
            {"attention_bias", false},
            {"mlp_bias", false}};
  for (int l = 0; l < 36; ++l) {
    file["no_rope_layers"].push_back((l + 1) % 4 == 0 ? 0 : 1);
    file["layer_types"].push_back("full_attention");
  }
  return file;
}
/// As DeepSeek-V3, converted to bf16.
inline Json deepseek_v3() {
  return {{"model_type", "deepseek_v3"},
          {"architectures", {"DeepseekV3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"aux_loss_alpha", 0.001},
          {"ep_size", 1},
          {"first_k_dense_replace", 3},
          {"hidden_act", "silu"},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 163840},
          {"moe_intermediate_size", 2048},
          {"moe_layer_freq", 1},
          {"n_group", 8},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"num_key_value_heads", 128},
          {"num_nextn_predict_layers", 1},
          {"pretraining_tp", 1},
          {"q_lora_rank", 1536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 2.5},
          {"scoring_func", "sigmoid"},
          {"seq_aux", true},
          {"tie_word_embeddings", false},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"v_head_dim", 128},
          {"vocab_size", 129280}};
}
/// As Moonlight-16B-A3B: a DeepSeek-V3 whose queries come from the residual stream, without groups.
inline Json moonlight() {
  auto file = deepseek_v3();
  file.update({{"first_k_dense_replace", 1},
               {"hidden_size", 2048},
               {"intermediate_size", 11264},
               {"max_position_embeddings", 8192},
               {"moe_intermediate_size", 1408},
               {"n_group", 1},
               {"n_routed_experts", 64},
               {"n_shared_experts", 2},
               {"num_attention_heads", 16},
               {"num_experts_per_tok", 6},
               {"num_hidden_layers", 27},
               {"num_key_value_heads", 16},
               {"num_nextn_predict_layers", 0},
               {"q_lora_rank", nullptr},
               {"rms_norm_eps", 1e-5},
               {"rope_scaling", nullptr},
               {"rope_theta", 50000.0},
               {"routed_scaling_factor", 2.446},
               {"topk_group", 1},
               {"vocab_size", 163840}});
  return file;
}
/// As GLM-4.5-Air.
inline Json glm4_moe() {
  return {{"model_type", "glm4_moe"},
          {"attention_bias", true},
          {"attention_dropout", 0.0},
          {"first_k_dense_replace", 1},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"hidden_size", 4096},
          {"intermediate_size", 10944},
          {"max_position_embeddings", 131072},
          {"moe_intermediate_size", 1408},
          {"n_group", 1},
          {"n_routed_experts", 128},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 96},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 46},
          {"num_key_value_heads", 8},
          {"num_nextn_predict_layers", 1},
          {"partial_rotary_factor", 0.5},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"routed_scaling_factor", 1.0},
          {"tie_word_embeddings", false},
          {"topk_group", 1},
          {"use_qk_norm", false},
          {"vocab_size", 151552}};
}

/// As gpt-oss-20b, but for its quantization_config.
/// Of Apertus 8B (swiss-ai/Apertus-8B-2509).
inline Json apertus() {
  return {{"architectures", {"ApertusForCausalLM"}},
          {"model_type", "apertus"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"hidden_act", "xielu"},
          {"hidden_dropout", 0.0},
          {"hidden_size", 4096},
          {"initializer_range", 0.02},
          {"intermediate_size", 21504},
          {"max_position_embeddings", 65536},
          {"mlp_bias", false},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 8},
          {"pad_token_id", 3},
          {"post_norm", false},
          {"qk_norm", true},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling",
           {{"factor", 8.0},
            {"high_freq_factor", 4.0},
            {"low_freq_factor", 1.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "llama3"},
            {"type", "llama3"}}},
          {"rope_theta", 12000000},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"vocab_size", 131072}};
}

/// Of Phi-4-mini (microsoft/Phi-4-mini-instruct).
inline Json phi4_mini() {
  Json const numbers = {1,           1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817,
                        2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023,
                        4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,
                        10.4687158,  11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
                        22.90118105, 25.61086418, 28.64115884, 32.03,       32.1,        32.13,       32.23,
                        32.6,        32.61,       32.64,       32.66,       32.7,        32.71,       32.93,
                        32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
  return {{"model_type", "phi3"},
          {"vocab_size", 200064},
          {"max_position_embeddings", 131072},
          {"original_max_position_embeddings", 4096},
          {"hidden_size", 3072},
          {"intermediate_size", 8192},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 24},
          {"num_key_value_heads", 8},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"partial_rotary_factor", 0.75},
          {"rope_scaling",
           {{"type", "longrope"}, {"long_factor", numbers}, {"short_factor", std::vector<double>(48, 1.0)}}},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"sliding_window", 262144},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"tie_word_embeddings", true}};
}

inline Json gpt_oss() {
  Json file{{"model_type", "gpt_oss"},
            {"attention_bias", true},
            {"attention_dropout", 0.0},
            {"eos_token_id", 200002},
            {"experts_per_token", 4},
            {"head_dim", 64},
            {"hidden_act", "silu"},
            {"hidden_size", 2880},
            {"initial_context_length", 4096},
            {"intermediate_size", 2880},
            {"max_position_embeddings", 131072},
            {"num_attention_heads", 64},
            {"num_experts_per_tok", 4},
            {"num_hidden_layers", 24},
            {"num_key_value_heads", 8},
            {"num_local_experts", 32},
            {"output_router_logits", false},
            {"pad_token_id", 199999},
            {"rms_norm_eps", 1e-5},
            {"rope_scaling",
             {{"beta_fast", 32.0},
              {"beta_slow", 1.0},
              {"factor", 32.0},
              {"original_max_position_embeddings", 4096},
              {"rope_type", "yarn"},
              {"truncate", false}}},
            {"rope_theta", 150000},
            {"router_aux_loss_coef", 0.9},
            {"sliding_window", 128},
            {"swiglu_limit", 7.0},
            {"tie_word_embeddings", false},
            {"use_cache", true},
            {"vocab_size", 201088}};
  for (int l = 0; l < 24; ++l) file["layer_types"].push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  return file;
}

}  // namespace p3d::config::test
