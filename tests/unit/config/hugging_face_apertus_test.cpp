// SPDX-License-Identifier: Apache-2.0
// Apertus: its published file, what it leaves out, and what is refused.

#include "hugging_face_support.hpp"

namespace p3d::config::test {
namespace {

using p3d::test::expect_error;

TEST(Apertus, PublishedFilesArePresets) {
  auto const found = read_preset(apertus(), ModelFamily::apertus, {"model.preset=apertus-8b"});
  EXPECT_TRUE(found.notes.empty());
  EXPECT_FALSE(found.model.gated());
  auto large = apertus();
  large.update(
      {{"hidden_size", 8192}, {"intermediate_size", 43008}, {"num_hidden_layers", 80}, {"num_attention_heads", 64}});
  read_preset(large, ModelFamily::apertus, {"model.preset=apertus-70b"});
}

TEST(Apertus, WhatIsLeftOutHasTheDefaultOfTransformers) {
  auto file = apertus();
  for (char const* key : {"attention_bias", "hidden_act", "hidden_dropout", "mlp_bias", "post_norm", "qk_norm",
                          "rms_norm_eps", "rope_scaling", "rope_theta"})
    file.erase(key);
  EXPECT_EQ(read(file).model, read(apertus()).model);
  EXPECT_EQ(read(with(apertus(), "hidden_dropout", 0.1)).notes.size(), 1u);
  // Versions of transformers read null in different ways.
  refused_file(with(apertus(), "rope_scaling", nullptr), "rope_parameters, an object: for null, transformers 5 takes");
  refused_file(with(file, "rope_theta", 500000), "rope_parameters, an object");
  auto const plain = read(with(file, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}})).model;
  EXPECT_EQ(plain.rope_scaling, RopeScaling::none);
  auto const text = Json::parse(write_hugging_face(plain, "bfloat16", -1));
  EXPECT_EQ(text["rope_scaling"]["rope_type"], "default") << "without it a reader takes that of llama3";
  EXPECT_EQ(text["hidden_act"], "xielu");
  EXPECT_EQ(read(text).model, plain);
}

TEST(Apertus, WhatOtherModelsHaveIsRefused) {
  refused_file(with(apertus(), "hidden_act", "silu"), "hidden_act = \"xielu\"");
  refused_file(with(apertus(), "attention_bias", true), "norms of queries and keys");
  refused_file(with(apertus(), "mlp_bias", true), "attention_bias and mlp_bias alike");
  refused_file(with(apertus(), "qk_norm", false), "qk_norm = true");
  refused_file(with(apertus(), "post_norm", true), "post_norm = false");
  refused_file(with(apertus(), "invented", 1), "\"invented\"");
}

TEST(Apertus, FormsWithoutANameAreRefused) {
  auto const refuses = [](char const* preset, std::vector<std::string> words, char const* text) {
    words.insert(words.begin(), std::string("model.preset=") + preset);
    expect_error([&] { family_of(good("", words).model); }, text);
  };
  refuses("apertus-8b", {"model.qk_norm=none"}, "qk_norm = none, which Apertus");
  refuses("apertus-8b", {"model.bias=true"}, "bias = true, which Apertus");
  refuses("apertus-8b", {"model.window=9"}, "window = 9, which Apertus");
  refuses("llama-tiny", {"model.activation=xielu"}, "qk_norm = none, which Apertus");
  refuses("gpt2-tiny", {"model.activation=xielu"}, "activation = xielu, which GPT-2");
}

}  // namespace
}  // namespace p3d::config::test
