// SPDX-License-Identifier: Apache-2.0
// The families of models in words: what `p3d import --list` prints and what errors name.
#include <p3d/config/hugging_face.hpp>

namespace p3d::config {

namespace {

constexpr ModelFamilyRow rows[] = {
    {ModelFamily::gpt2, "GPT-2", "GPT2LMHeadModel", "layernorm, learned, gelu, bias, kv_heads = heads, no window"},
    {ModelFamily::llama, "Llama", "LlamaForCausalLM", "rmsnorm, rope, swiglu, no window"},
    {ModelFamily::mistral, "Mistral", "MistralForCausalLM", "as Llama, no bias, one window for all layers", false,
     QkNorm::none, NormPlacement::pre, FamilyWindows::one},
    {ModelFamily::ministral3, "Ministral 3", "Ministral3ForCausalLM",
     "as Mistral, maybe without window, rope_query_beta", false, QkNorm::none, NormPlacement::pre, FamilyWindows::one},
    {ModelFamily::mixtral, "Mixtral", "MixtralForCausalLM", "as Mistral, experts in all layers, softmax, normalize",
     true, QkNorm::none, NormPlacement::pre, FamilyWindows::one},
    {ModelFamily::qwen2, "Qwen2", "Qwen2ForCausalLM", "as Llama, no bias but qkv_bias"},
    {ModelFamily::qwen2_moe, "Qwen2-MoE", "Qwen2MoeForCausalLM",
     "as Llama, no bias but maybe qkv_bias, routed experts, softmax, gated shared experts", true},
    {ModelFamily::qwen3, "Qwen3", "Qwen3ForCausalLM", "as Llama, no bias, qk_norm head", false, QkNorm::head},
    {ModelFamily::qwen3_moe, "Qwen3-MoE", "Qwen3MoeForCausalLM", "as Qwen3, routed experts alone, softmax", true,
     QkNorm::head},
    {ModelFamily::olmo2, "OLMo 2", "Olmo2ForCausalLM", "as Llama, no bias, norm_placement post, qk_norm full", false,
     QkNorm::full, NormPlacement::post},
    {ModelFamily::olmo3, "OLMo 3", "Olmo3ForCausalLM", "as OLMo 2, one window for some layers", false, QkNorm::full,
     NormPlacement::post, FamilyWindows::mixed},
    {ModelFamily::olmoe, "OLMoE", "OlmoeForCausalLM",
     "as Llama, no bias, heads that divide hidden, qk_norm full, routed experts alone in all layers, softmax", true,
     QkNorm::full},
    {ModelFamily::granite, "Granite", "GraniteForCausalLM",
     "as Llama, multipliers of embedding, attention, residual and logits"},
    {ModelFamily::glm4, "GLM-4", "Glm4ForCausalLM",
     "as Llama, no bias but maybe qkv_bias, norm_placement sandwich, rope_pairs neighbours", false, QkNorm::none,
     NormPlacement::sandwich},
    {ModelFamily::gemma2, "Gemma 2", "Gemma2ForCausalLM",
     "as Gemma 3, without qk_norm, attention_softcap and logits_softcap", false, QkNorm::none, NormPlacement::sandwich,
     FamilyWindows::mixed},
    {ModelFamily::gemma3_text, "Gemma 3", "Gemma3ForCausalLM",
     "rmsnorm, norm_offset 1, norm_placement sandwich, qk_norm head, rope, geglu, no bias, embedding_multiplier "
     "sqrt(hidden), one window for some layers, maybe soft caps",
     false, QkNorm::head, NormPlacement::sandwich, FamilyWindows::mixed},
    {ModelFamily::phi3, "Phi-3", "Phi3ForCausalLM",
     "as Llama, no bias, one window for all layers, any rope_fraction; fused tensors, by its config.json", false,
     QkNorm::none, NormPlacement::pre, FamilyWindows::one},
    {ModelFamily::smollm3, "SmolLM3", "SmolLM3ForCausalLM", "as Llama, some rope_layers 0"},
    {ModelFamily::deepseek_v3, "DeepSeek-V3", "DeepseekV3ForCausalLM",
     "as Llama, no bias, mla; experts, if any, with sigmoid, choice_bias and shared ones of a multiple of their width",
     true},
    {ModelFamily::glm4_moe, "GLM-4.5", "Glm4MoeForCausalLM",
     "as Llama, no bias but maybe qkv_bias, any rope_fraction, qk_norm head or none, experts as DeepSeek-V3", true},
    {ModelFamily::gpt_oss, "gpt-oss", "GptOssForCausalLM",
     "as Llama, swiglu_clamped, attention_sinks, experts in all layers, moe.bias, softmax, normalize, one window for "
     "some layers",
     true, QkNorm::none, NormPlacement::pre, FamilyWindows::mixed},
    {ModelFamily::apertus, "Apertus", "ApertusForCausalLM", "as Llama, no bias, xielu, qk_norm head", false,
     QkNorm::head}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < std::size(rows); ++i)
    if (rows[i].family != static_cast<ModelFamily>(i)) return false;
  return std::size(rows) == enum_names(ModelFamily{}).size();
}
static_assert(in_order(), "row_of() finds a family by its number");

}  // namespace

std::span<ModelFamilyRow const> model_families() { return rows; }

}  // namespace p3d::config
