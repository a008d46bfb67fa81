// SPDX-License-Identifier: Apache-2.0
// The families whose router is DeepSeek-V3's: their published files, what they share, and what is refused.

#include "hugging_face_support.hpp"

#include <support/temp_dir.hpp>

#include <cmath>

namespace p3d::config::test {
namespace {

using p3d::test::expect_error;

/// The overrides that make a preset what a file can say: balancing is of training.
std::vector<std::string> of_file(char const* preset) {
  return {std::string("model.preset=") + preset, "model.moe.aux_loss=none", "model.moe.aux_coefficient=0.01",
          "model.moe.bias_update_rate=0", "model.moe.choice_bias=true"};
}

Json rewritten(Model const& m) { return Json::parse(write_hugging_face(m, "bfloat16", -1)); }

TEST(DeepSeekFamilies, PublishedFilesArePresets) {
  auto const deepseek = read_preset(deepseek_v3(), ModelFamily::deepseek_v3, of_file("deepseek-v3"));
  EXPECT_EQ(deepseek.prediction_layers, 1);
  EXPECT_EQ(deepseek.model.mtp.depth, 0) << "the files decide";
  ASSERT_EQ(deepseek.notes.size(), 1u);
  expect_contains(deepseek.notes[0], "aux_loss_alpha");
  auto const small = read_preset(moonlight(), ModelFamily::deepseek_v3, of_file("moonlight-16b-a3b"));
  EXPECT_EQ(small.prediction_layers, 0);
  EXPECT_EQ(small.model.mla.norm_eps, 1e-6) << "the default of DeepseekV3RMSNorm, whatever rms_norm_eps is";
  EXPECT_EQ(small.model.attention_multiplier, 0.0);
  auto const glm = read_preset(glm4_moe(), ModelFamily::glm4_moe, of_file("glm4.5-air"));
  EXPECT_EQ(glm.model.rope_pairs, RopePairs::halves);
  EXPECT_EQ(glm.model.rotary_dim(), 64);
  EXPECT_EQ(glm.prediction_layers, 1);
  EXPECT_EQ(read(with(glm4_moe(), "use_qk_norm", true)).model.qk_norm, QkNorm::head);
}

// Published folders may have the number of layers of multi-token prediction, and not their tensors.
TEST(DeepSeekFamilies, PredictionLayersAreThereWhereTheirTensorsAre) {
  p3d::test::TempDir const folder;
  auto const read = [&](Json const& file) {
    folder.write("config.json", file.dump());
    return read_hugging_face_folder(folder.path().string());
  };
  auto const none = read(deepseek_v3());
  EXPECT_EQ(none.model.mtp.depth, 0);
  expect_contains(none.notes.back(), "num_nextn_predict_layers = 1, layers of multi-token prediction behind the 61");
  expect_contains(none.notes.back(), "the files have no tensors of them");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"model.layers.61.eh_proj.weight": "a"}})");
  auto const some = read(deepseek_v3());
  EXPECT_EQ(some.model.mtp.depth, 1);
  EXPECT_EQ(some.model.mtp.loss_weight, 0.3);
  EXPECT_EQ(some.notes.size(), 1u);
  // A file of its own comes before an index, as in room io; its header stands behind 8 bytes.
  folder.write("model.safetensors", R"(12345678{"model.layers.60.eh_proj.weight": 1})");
  EXPECT_EQ(read(deepseek_v3()).model.mtp.depth, 0);
  folder.write("model.safetensors", R"(12345678{"model.layers.61.eh_proj.weight": 1})");
  EXPECT_EQ(read(deepseek_v3()).model.mtp.depth, 1);
  EXPECT_EQ(read(with(deepseek_v3(), "num_nextn_predict_layers", 0)).model.mtp.depth, 0);
  folder.write("model.safetensors", "1234");
  EXPECT_EQ(read(deepseek_v3()).model.mtp.depth, 0);
}

TEST(DeepSeekFamilies, PredictionLayersAreWritten) {
  auto m = read(deepseek_v3()).model;
  EXPECT_EQ(rewritten(m)["num_nextn_predict_layers"], 0);
  m.mtp.depth = 1;
  EXPECT_EQ(rewritten(m)["num_nextn_predict_layers"], 1);
  EXPECT_EQ(rewritten(m)["first_k_dense_replace"], 3);
  m.moe = {};  // a dense model has dense ones
  EXPECT_EQ(rewritten(m)["first_k_dense_replace"], 62);
  m = read(glm4_moe()).model;
  m.mtp.depth = 2;
  EXPECT_EQ(rewritten(m)["num_nextn_predict_layers"], 2);
  m = read(llama()).model;
  m.mtp.depth = 1;
  expect_error([&] { rewritten(m); }, "mtp.depth = 1");
}

TEST(DeepSeekFamilies, WhatIsLeftOutHasTheDefaultOfTransformers) {
  auto file = deepseek_v3();
  for (char const* key : {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                          "n_group", "topk_group", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
                          "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor",
                          "num_key_value_heads", "scoring_func", "topk_method", "rms_norm_eps"})
    file.erase(key);
  EXPECT_EQ(read(file).model, read(deepseek_v3()).model);
  EXPECT_EQ(read(with(deepseek_v3(), "rope_interleave", true)).model, read(deepseek_v3()).model);
  EXPECT_EQ(read(with(deepseek_v3(), "rope_interleave", false)).model.rope_pairs, RopePairs::halves);
  EXPECT_EQ(read(with(deepseek_v3(), "rope_interleave", nullptr)).model.rope_pairs, RopePairs::halves);
  EXPECT_FALSE(read(with(deepseek_v3(), "norm_topk_prob", nullptr)).model.moe.normalize);
  auto glm = glm4_moe();
  for (char const* key : {"attention_bias", "partial_rotary_factor", "use_qk_norm", "n_group", "topk_group"})
    glm.erase(key);
  EXPECT_FALSE(read(glm).model.qkv_bias);
  EXPECT_EQ(read(glm).model.rope_fraction, 0.5);
  EXPECT_EQ(read(with(glm, "n_routed_experts", nullptr)).model.moe.experts, 128);
  // transformers writes the width of heads in its own way.
  auto saved = with(with(deepseek_v3(), "head_dim", 64), "qk_head_dim", 192);
  EXPECT_EQ(read(saved).model, read(deepseek_v3()).model);
  refused_file(with(saved, "head_dim", 192), "head_dim = qk_rope_head_dim");
  refused_file(with(saved, "qk_head_dim", 128), "qk_head_dim = qk_nope_head_dim + qk_rope_head_dim");
}

/// The scale of the scores against DeepseekV3Attention's formula, and back.
TEST(DeepSeekFamilies, YarnScalesTheScores) {
  auto const scaled = [](Json const& changes) {
    auto file = deepseek_v3();
    file["rope_scaling"].update(changes);
    return read(file).model;
  };
  auto const m = scaled({{"mscale", 0.707}, {"mscale_all_dim", 0.707}});
  EXPECT_EQ(m.rope_attention_factor, 1.0);
  EXPECT_DOUBLE_EQ(m.attention_scale(), std::pow(0.0707 * std::log(40.0) + 1.0, 2) / std::sqrt(192.0));
  EXPECT_EQ(rewritten(m)["rope_scaling"]["mscale_all_dim"], 0.707);
  EXPECT_EQ(rewritten(m)["rope_scaling"]["mscale"], 0.707);
  EXPECT_FALSE(rewritten(m)["rope_scaling"].contains("attention_factor"));
  for (auto const& changes : std::vector<Json>{{{"mscale", 1.0}, {"mscale_all_dim", 0.7}},
                                               {{"mscale", nullptr}, {"mscale_all_dim", 0.3}},
                                               {{"mscale", 1.0}, {"mscale_all_dim", 0.0}},
                                               {{"mscale_all_dim", 1.0 / 3}, {"attention_factor", 1.5}},
                                               {{"factor", 1.0}},
                                               {{"factor", 1.0009765625}, {"mscale_all_dim", 1e-3}},
                                               {{"factor", 4.7}, {"mscale_all_dim", 123.456789012345}}}) {
    auto const model = scaled(changes);
    EXPECT_EQ(read(rewritten(model)).model, model) << changes;
  }
  EXPECT_EQ(scaled({{"mscale_all_dim", 0.0}}).attention_multiplier, 0.0);
  // No YaRN gives smaller scores, nor any without YaRN.
  auto const refuses = [](std::vector<std::string> const& overrides) {
    auto words = of_file("deepseek-v3");
    words.insert(words.end(), overrides.begin(), overrides.end());
    expect_error([&] { family_of(good("", words).model); }, "attention_multiplier = ");
    expect_error([&] { family_of(good("", words).model); }, "which DeepSeek-V3 does not have");
  };
  refuses({"model.attention_multiplier=0.07"});
  refuses({"model.rope_scaling=none"});
  refuses({"model.rope_scaling_factor=1"});
}

TEST(DeepSeekFamilies, WhatOtherModelsHaveIsRefused) {
  refused_file(with(deepseek_v3(), "quantization_config", {{"quant_method", "fp8"}}), "converted to bf16 first");
  refused_file(with(deepseek_v3(), "num_key_value_heads", 8), "num_key_value_heads = num_attention_heads");
  refused_file(with(deepseek_v3(), "attention_bias", true), "attention_bias = false (p3d has latent attention without");
  refused_file(with(deepseek_v3(), "topk_method", "greedy"), "topk_method = \"noaux_tc\": the string \"greedy\"");
  refused_file(with(deepseek_v3(), "scoring_func", "softmax"), "scoring_func = \"sigmoid\"");
  refused_file(with(deepseek_v3(), "moe_layer_freq", 2), "moe_layer_freq = 1");
  refused_file(with(deepseek_v3(), "n_group", 3),
               "n_group that divides n_routed_experts into groups of at least 2: 3 for 256");
  refused_file(with(deepseek_v3(), "n_group", 256), "groups of at least 2: 256 for 256");
  refused_file(with(deepseek_v3(), "topk_group", 9), "topk_group of at most n_group");
  refused_file(with(deepseek_v3(), "n_shared_experts", 0), "n_shared_experts, a whole number from 1");
  refused_file(with(deepseek_v3(), "first_k_dense_replace", -1), "first_k_dense_replace, a whole number from 0");
  refused_file(with(deepseek_v3(), "qk_rope_head_dim", 63), "qk_rope_head_dim, an even number");
  refused_file(with(deepseek_v3(), "kv_lora_rank", 0), "kv_lora_rank, a whole number from 1");
  refused_file(with(deepseek_v3(), "index_topk", 2048), "\"index_topk\"");
  refused_file(with(glm4_moe(), "first_k_dense_replace", 46), "a layer with experts: none");
  refused_file(without(glm4_moe(), "head_dim"), "hidden_size divisible by num_attention_heads, or head_dim");
  refused_file(with(with(glm4_moe(), "mlp_bias", true), "attention_bias", false), "mlp_bias = false");
}

TEST(DeepSeekFamilies, ADenseModelWithLatentAttentionIsADeepSeek) {
  auto const m = read(with(deepseek_v3(), "first_k_dense_replace", 61)).model;
  EXPECT_FALSE(m.moe.on());
  EXPECT_EQ(m.moe.ffn, 18432) << "the default of the key";
  EXPECT_EQ(rewritten(m)["first_k_dense_replace"], 61);
  EXPECT_EQ(read(rewritten(m)).model, m);
}

TEST(DeepSeekFamilies, FormsWithoutANameAreRefused) {
  auto const refuses = [](char const* preset, char const* override, char const* words) {
    expect_error([&] { family_of(good("", {std::string("model.preset=") + preset, override}).model); }, words);
  };
  refuses("deepseek-v3-tiny", "model.moe.shared_ffn=50", "moe.shared_ffn = 50, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.moe.shared_ffn=0", "moe.shared_ffn = 0, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.moe.every=2", "moe.every = 2, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.moe.score=softmax", "moe.score = softmax, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.moe.bias_update_rate=0", "moe.choice_bias = false, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.mla.norm_eps=1e-5", "mla.norm_eps = 1e-05, which DeepSeek-V3");
  refuses("deepseek-v3-tiny", "model.window=8", "window = 8, which DeepSeek-V3");
  refuses("deepseek-moe-tiny", "model.moe.shared_gate=true", "moe.shared_gate = true, which GLM-4.5");
  refuses("deepseek-moe-tiny", "model.rope_pairs=neighbours", "rope_pairs = neighbours, which GLM-4.5");
  refuses("deepseek-moe-tiny", "model.moe.capacity_factor=2", "moe.capacity_factor = 2, which GLM-4.5");
  refuses("deepseek-moe-tiny", "model.qk_norm=full", "qk_norm = full, which GLM-4.5");
  EXPECT_EQ(family_of(good("", {"model.preset=deepseek-moe-tiny"}).model), ModelFamily::glm4_moe);
  EXPECT_EQ(family_of(good("", {"model.preset=deepseek-v3-tiny"}).model), ModelFamily::deepseek_v3);
}

}  // namespace
}  // namespace p3d::config::test
