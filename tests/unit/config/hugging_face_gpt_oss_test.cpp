// SPDX-License-Identifier: Apache-2.0
// gpt-oss: its published files, what they leave out, and what is refused.

#include "hugging_face_support.hpp"

namespace p3d::config::test {
namespace {

using p3d::test::expect_error;

std::vector<std::string> gpt_oss_preset(char const* preset) {
  return {std::string("model.preset=") + preset, "model.moe.aux_loss=none", "model.moe.aux_coefficient=0.01"};
}

Json written_again(Model const& m) { return Json::parse(write_hugging_face(m, "bfloat16", -1)); }

TEST(GptOss, PublishedFilesArePresets) {
  auto const found = read_preset(gpt_oss(), ModelFamily::gpt_oss, gpt_oss_preset("gpt-oss-20b"));
  EXPECT_TRUE(found.model.bias && found.model.qkv_bias && found.model.moe.bias && found.model.attention_sinks);
  EXPECT_EQ(found.model.window, (std::vector<std::int64_t>{128, 0}));
  EXPECT_TRUE(found.model.rope_scaling_layers.empty()) << "layers with a window are scaled, too";
  auto large = gpt_oss();
  large.update({{"num_hidden_layers", 36}, {"num_local_experts", 128}});
  for (int l = 24; l < 36; ++l) large["layer_types"].push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  read_preset(large, ModelFamily::gpt_oss, gpt_oss_preset("gpt-oss-120b"));
}

TEST(GptOss, WhatIsLeftOutHasTheDefaultOfTransformers) {
  auto file = gpt_oss();
  for (char const* key :
       {"attention_bias", "head_dim", "layer_types", "num_experts_per_tok", "num_key_value_heads", "rms_norm_eps",
        "rope_scaling", "rope_theta", "sliding_window", "swiglu_limit", "experts_per_token", "initial_context_length"})
    file.erase(key);
  EXPECT_EQ(read(file).model, read(gpt_oss()).model);
  EXPECT_EQ(read(with(file, "rope_scaling", nullptr)).model, read(gpt_oss()).model) << "null is a YaRN, too";
  EXPECT_EQ(read(without(file, "num_local_experts")).model.moe.experts, 128);
  auto const plain = read(with(file, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}})).model;
  EXPECT_EQ(plain.rope_scaling, RopeScaling::none);
  EXPECT_EQ(written_again(plain)["rope_scaling"]["rope_type"], "default") << "without it a reader takes the YaRN";
  EXPECT_EQ(read(written_again(plain)).model, plain);
  EXPECT_EQ(read(with(file, "swiglu_alpha", 1.5)).model.swiglu_alpha, 1.5);
  auto const unbiased = read(with(file, "attention_bias", false)).model;
  EXPECT_FALSE(unbiased.bias || unbiased.qkv_bias);
  EXPECT_TRUE(unbiased.moe.bias);
  EXPECT_EQ(read(written_again(unbiased)).model, unbiased);
}

TEST(GptOss, WhatOtherModelsHaveIsRefused) {
  refused_file(with(gpt_oss(), "quantization_config", {{"quant_method", "mxfp4"}}), "Mxfp4Config(dequantize=True)");
  refused_file(with(gpt_oss(), "mlp_bias", true), "mlp_bias = false");
  refused_file(with(gpt_oss(), "hidden_act", "gelu"), "hidden_act");
  refused_file(with(without(gpt_oss(), "experts_per_token"), "num_experts_per_tok", 33),
               "num_experts_per_tok of at most num_local_experts = 32");
  refused_file(with(gpt_oss(), "experts_per_token", 3), "experts_per_token = 4, as num_experts_per_tok says");
  refused_file(with(gpt_oss(), "initial_context_length", 8192), "initial_context_length = 4096, as original_max");
  refused_file(with(gpt_oss(), "swiglu_limit", 0), "swiglu_limit, a number from");
  refused_file(with(gpt_oss(), "sliding_window", nullptr), "sliding_window, a whole number, where a layer");
  refused_file(with(gpt_oss(), "head_dim", 63), "an even head_dim");
  refused_file(with(gpt_oss(), "invented", 1), "\"invented\"");
}

TEST(GptOss, FormsWithoutANameAreRefused) {
  auto const refuses = [](char const* preset, std::vector<std::string> words, char const* text) {
    words.insert(words.begin(), std::string("model.preset=") + preset);
    expect_error([&] { family_of(good("", words).model); }, text);
  };
  refuses("gpt-oss-20b", {"model.activation=swiglu"}, "activation = swiglu, which gpt-oss");
  refuses("gpt-oss-20b", {"model.moe.bias=false"}, "moe.bias = false, which gpt-oss");
  refuses("gpt-oss-20b", {"model.moe.normalize=false"}, "moe.normalize = false, which gpt-oss");
  refuses("gpt-oss-20b", {"model.moe.every=2"}, "moe.every = 2, which gpt-oss");
  refuses("gpt-oss-20b", {"model.bias=false"}, "qkv_bias = true, which gpt-oss");
  refuses("gpt-oss-20b", {"model.rope_scaling_layers=[0, 1]"}, "rope_scaling_layers = [0, 1], which gpt-oss");
  refuses("gpt-oss-20b", {"model.window=[4, 5]"}, "window = [4, 5], which gpt-oss");
  refuses("gpt-oss-20b", {"model.attention_sinks=false"}, "activation = swiglu_clamped");
  refuses("llama-tiny", {"model.attention_sinks=true"}, "activation = swiglu, moe.experts = 0, which gpt-oss");
  refuses("mixtral-tiny", {"model.moe.bias=true"}, "moe.bias = true, which Mixtral");
  refuses("deepseek-v3-tiny", {"model.moe.bias=true"}, "moe.bias = true, which DeepSeek-V3");
}

}  // namespace
}  // namespace p3d::config::test
