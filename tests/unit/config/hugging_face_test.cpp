// SPDX-License-Identifier: Apache-2.0
// config.json of transformers <-> [model], and what is refused because p3d would compute something else.

#include "hugging_face_support.hpp"

#include <support/temp_dir.hpp>

#include <cmath>

namespace p3d::config::test {
namespace {

using p3d::test::expect_error;

TEST(HuggingFaceConfig, Gpt2IsThePreset) {
  auto const found = read_preset(gpt2(), ModelFamily::gpt2, {"model.preset=gpt2-124m", "model.dropout=0.1"});
  EXPECT_TRUE(found.notes.empty());
}

TEST(HuggingFaceConfig, LlamaIsThePreset) {
  read_preset(llama(), ModelFamily::llama, {"model.preset=llama3-8b", "model.seq_len=131072"});
}

TEST(HuggingFaceConfig, WhatIsLeftOutHasTheDefaultOfTransformers) {
  auto file = without(without(without(llama(), "rms_norm_eps"), "rope_theta"), "num_key_value_heads");
  auto const m = read(without(without(file, "tie_word_embeddings"), "hidden_act")).model;
  EXPECT_EQ(m.norm_eps, 1e-6);
  EXPECT_EQ(m.rope_theta, 1e4);
  EXPECT_EQ(m.kv_heads, 32);
  EXPECT_FALSE(m.tied_embeddings);
  EXPECT_TRUE(read(gpt2()).model.tied_embeddings);
  EXPECT_EQ(read(with(gpt2(), "n_inner", 100)).model.ffn, 100);
  EXPECT_FALSE(read(with(gpt2(), "tie_word_embeddings", false)).model.tied_embeddings);
}

TEST(HuggingFaceConfig, ReadsBothFormsOfRotaryScaling) {
  Json const scaling{{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}};
  auto const older = read(with(llama(), "rope_scaling", scaling)).model;
  EXPECT_EQ(older.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(older.rope_scaling_factor, 8.0);
  EXPECT_EQ(older.rope_low_freq_factor, 1.0);
  EXPECT_EQ(older.rope_high_freq_factor, 4.0);
  EXPECT_EQ(older.rope_original_seq_len, 8192);
  EXPECT_EQ(older.rope_theta, 5e5);
  auto newer = with(without(llama(), "rope_theta"), "rope_parameters", scaling);
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(read(newer).model, older);
  auto const linear = read(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2}})).model;
  EXPECT_EQ(linear.rope_scaling, RopeScaling::linear);
  EXPECT_EQ(linear.rope_scaling_factor, 2.0);
  auto const plain = read(with(llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}})).model;
  EXPECT_EQ(plain.rope_scaling, RopeScaling::none);
  EXPECT_EQ(plain.rope_theta, 7.0);
}

TEST(HuggingFaceConfig, ReadsYarn) {
  Json const scaling{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  auto const m = read(with(qwen3(), "rope_scaling", scaling)).model;
  EXPECT_EQ(m.rope_scaling, RopeScaling::yarn);
  EXPECT_EQ(m.rope_scaling_factor, 4.0);
  EXPECT_EQ(m.rope_original_seq_len, 32768);
  EXPECT_EQ(m.rope_attention_factor, 0.0) << "0.1 ln(4) + 1";
  EXPECT_TRUE(m.rope_truncate && m.rope_scaling_layers.empty());
  auto more = scaling;
  more.update({{"beta_fast", 16}, {"beta_slow", 2}, {"mscale", 2.0}, {"mscale_all_dim", 1.0}, {"truncate", false}});
  auto const other = read(with(qwen3(), "rope_scaling", more)).model;
  EXPECT_EQ(other.rope_beta_fast, 16.0);
  EXPECT_EQ(other.rope_beta_slow, 2.0);
  EXPECT_DOUBLE_EQ(other.rope_attention_factor, (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  EXPECT_FALSE(other.rope_truncate);
}

TEST(HuggingFaceConfig, RefusesOtherRotaryEmbeddings) {
  refused_file(with(llama(), "rope_scaling", {{"rope_type", "longrope"}}), "\"longrope\"");
  refused_file(with(llama(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}),
               "original_max_position_embeddings");
  refused_file(with(llama(), "rope_scaling",
                    {{"rope_type", "yarn"},
                     {"factor", 2.0},
                     {"original_max_position_embeddings", 64},
                     {"beta_fast", 1},
                     {"beta_slow", 1}}),
               "beta_slow below beta_fast: 1 and 1");
  refused_file(with(llama(), "rope_scaling", {{"rope_type", "linear"}}), "factor, a number from 1 on: no such key");
  refused_file(with(llama(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"beta", 1}}), "\"beta\"");
  refused_file(with(llama(), "rope_scaling", 3), "rope_scaling, an object: the number 3");
  refused_file(with(llama(), "rope_scaling",
                    {{"type", "llama3"},
                     {"factor", 2.0},
                     {"low_freq_factor", 4.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8}}),
               "low_freq_factor below high_freq_factor: 4 and 4");
}

TEST(HuggingFaceConfig, RefusesOtherWindows) {
  refused_file(with(mistral(), "sliding_window", 0), "sliding_window, a whole number from 1 to 16777216: the number 0");
  refused_file(with(mistral(), "sliding_window", 2.5), "sliding_window, a whole number");
  refused_file(with(mistral(), "sliding_window", {1, 2}), "sliding_window, a whole number");
  refused_file(with(mistral(), "layer_types", {"full_attention"}), "layer_types of sliding_attention alone: a list");
  refused_file(with(with(mistral(), "attention_bias", true), "mlp_bias", true), "Mistral has no biases");
  refused_file(with(llama(), "sliding_window", 4096), "a window only where model_type is mistral or mixtral");
}

TEST(HuggingFaceConfig, RefusesWhatChangesTheFunctionByName) {
  for (auto const& [key, value] : std::vector<std::pair<char const*, Json>>{{"sliding_window", 4096},
                                                                            {"quantization_config", Json::object()},
                                                                            {"partial_rotary_factor", 0.5},
                                                                            {"pretraining_tp", 2},
                                                                            {"is_encoder_decoder", true},
                                                                            {"hidden_act", "gelu"},
                                                                            {"head_dim", 63},
                                                                            {"attention_bias", true},
                                                                            {"mlp_bias", true},
                                                                            {"rms_norm_eps", "small"},
                                                                            {"tie_word_embeddings", 1},
                                                                            {"invented", 0}}) {
    refused_file(with(llama(), key, value), key);
  }
  for (auto const& [key, value] : std::vector<std::pair<char const*, Json>>{{"scale_attn_weights", false},
                                                                            {"scale_attn_by_inverse_layer_idx", true},
                                                                            {"reorder_and_upcast_attn", true},
                                                                            {"add_cross_attention", true},
                                                                            {"n_ctx", 512},
                                                                            {"activation_function", "gelu"},
                                                                            {"n_head", 0},
                                                                            {"n_embd", 1.5},
                                                                            {"n_layer", std::int64_t{1} << 40},
                                                                            {"pruned_heads", {{"0", {1}}}},
                                                                            {"hidden_size", 768}}) {
    refused_file(with(gpt2(), key, value), key);
  }
  refused_file(with(gpt2(), "n_head", 7), "n_embd divisible by n_head: 768 and 7");
  refused_file(with(gpt2(), "n_head", 1000), "n_embd divisible by n_head: 768 and 1000");
  refused_file(with(llama(), "num_key_value_heads", 31), "divisible by num_key_value_heads: 32 and 31");
  refused_file(without(gpt2(), "n_layer"), "n_layer, a whole number from 1 to 65536: no such key");
}

TEST(HuggingFaceConfig, BiasesOfAllLinearLayersAreOneKey) {
  EXPECT_TRUE(read(with(with(llama(), "attention_bias", true), "mlp_bias", true)).model.bias);
  EXPECT_FALSE(read(llama()).model.bias);
}

/// Keys of files as they are published: SmolLM2-135M-Instruct, gpt2-xl and distilgpt2, huggyllama/llama-7b, and files
/// that transformers 4.53 and later save.
TEST(HuggingFaceConfig, PublishedFilesAreRead) {
  auto smol = llama();
  smol.update({{"is_llama_config", true},
               {"rope_interleaved", false},
               {"transformers.js_config", {{"kv_cache_dtype", {{"q4f16", "float16"}}}}}});
  EXPECT_EQ(read(smol).model, read(llama()).model);
  refused_file(with(smol, "rope_interleaved", true), "rope_interleaved = false (p3d's model has rotation of the pairs");
  auto first = gpt2();
  first.update({{"n_special", 0},
                {"predict_special_tokens", true},
                {"output_past", true},
                {"_num_labels", 1},
                {"n_ctx", 1024},
                {"xla_device", nullptr}});
  EXPECT_EQ(read(first).model, read(gpt2()).model);
  EXPECT_EQ(read(with(llama(), "max_sequence_length", 2048)).model, read(llama()).model);
  EXPECT_EQ(read(with(llama(), "layer_types", Json(32, "full_attention"))).model, read(llama()).model);
  EXPECT_EQ(read(with(mistral(), "layer_types", Json(32, "sliding_attention"))).model, read(mistral()).model);
  refused_file(with(llama(), "layer_types", {"full_attention", "sliding_attention"}),
               "layer_types of full_attention alone");
}

struct Updated {
  Json file;
  std::string lines;
};
Updated update(Json const& origin, Model const& now, char const* dtype = "float32", std::int64_t eos = -1) {
  auto const found = update_hugging_face(origin.dump(), "F/config.json", now, dtype, eos);
  Updated out{Json::parse(found.text), {}};
  for (auto const& line : found.changes) out.lines += line + "\n";
  if (out.file == origin) {
    EXPECT_EQ(found.text, origin.dump()) << "the origin's own bytes";
  }
  return out;
}

TEST(HuggingFaceConfig, OnlyWhatChangedIsAnotherValue) {
  auto origin = with(with(llama(), "eos_token_id", {128001, 128009}), "torch_dtype", "float32");
  origin.update({{"bos_token_id", 128000}, {"transformers_version", "4.40"}, {"rope_interleaved", false}});
  auto model = read(origin).model;
  EXPECT_EQ(update(origin, model).file, origin);
  EXPECT_EQ(update(origin, model).lines, "");
  // Shorter texts do not make a model with rotary positions shorter; longer ones make it longer.
  model.seq_len = 64;
  EXPECT_EQ(update(origin, model).file, origin);
  EXPECT_EQ(update(origin, model).lines,
            "max_position_embeddings = 131072, as in the origin, although model.seq_len of the run is 64\n");
  model.seq_len = 200000;
  EXPECT_EQ(update(origin, model).file, with(origin, "max_position_embeddings", 200000));
  EXPECT_EQ(update(origin, model).lines, "max_position_embeddings = 200000 (131072 in the origin)\n");
  model.seq_len = 131072;
  EXPECT_EQ(update(origin, model, "bfloat16").file, with(origin, "torch_dtype", "bfloat16"));
  EXPECT_EQ(update(origin, model, "bfloat16").lines,
            "torch_dtype = \"bfloat16\" (\"float32\" in the origin; --dtype chooses the type of the numbers)\n");
  EXPECT_EQ(update(origin, model, "float32", 128009).lines, "");
  EXPECT_EQ(update(origin, model, "float32", 7).file, origin);
  EXPECT_EQ(update(origin, model, "float32", 7).lines,
            "eos_token_id = [128001,128009], as in the origin, although documents of the run end with 7\n");
  EXPECT_EQ(update(llama(), model, "float32", 7).file, with(llama(), "eos_token_id", 7));
}

TEST(HuggingFaceConfig, LearnedPositionsAndDropoutChange) {
  auto const origin = with(gpt2(), "n_ctx", 1024);
  auto model = read(origin).model;
  model.seq_len = 512;
  model.dropout = 0.0;
  auto expected = origin;
  expected.update(
      {{"n_positions", 512}, {"n_ctx", 512}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}});
  EXPECT_EQ(update(origin, model).file, expected);
  EXPECT_FALSE(update(gpt2(), model).file.contains("n_ctx"));
  // Three values that model.dropout cannot hold stay where the run sets none.
  auto const three = with(gpt2(), "attn_pdrop", 0.2);
  EXPECT_EQ(update(three, read(three).model).file, three);
}

TEST(HuggingFaceConfig, AFileOfAnotherModelIsNotUpdated) {
  auto const other = read(with(llama(), "hidden_size", 2048)).model;
  expect_error([&] { update(llama(), other); }, "F/config.json");
  expect_error([&] { update(llama(), other); }, "hidden_size = 2048, as the model has it");
  expect_error([&] { update(llama(), read(gpt2()).model); }, "as the model has it");
  expect_error([&] { update(with(llama(), "invented", 1), read(llama()).model); }, "\"invented\"");
  // A window that is none is a Llama to p3d; the file stays a Mistral's.
  auto const plain = with(mistral(), "sliding_window", nullptr);
  EXPECT_EQ(update(plain, read(plain).model).file, plain);
  EXPECT_EQ(update(mixtral(), read(mixtral()).model).file, mixtral());
  EXPECT_EQ(update(qwen2_moe(), read(qwen2_moe()).model).file, qwen2_moe());
  EXPECT_EQ(update(smollm3(), read(smollm3()).model).file, smollm3());
  EXPECT_EQ(update(moonlight(), read(moonlight()).model).file, moonlight());
  EXPECT_EQ(update(gpt_oss(), read(gpt_oss()).model).file, gpt_oss());
  EXPECT_EQ(update(apertus(), read(apertus()).model).file, apertus());
  EXPECT_EQ(update(phi4_mini(), read(phi4_mini()).model).file, phi4_mini());
  auto longer = read(phi4_mini()).model;
  longer.seq_len *= 2;
  EXPECT_EQ(read(update(phi4_mini(), longer).file).model, longer) << "the stretch stays that of the origin";
  for (auto const& file : {deepseek_v3(), glm4_moe()}) {
    EXPECT_EQ(update(file, read(file).model).file, with(file, "num_nextn_predict_layers", 0));
    EXPECT_EQ(update(file, read(file).model).lines,
              "num_nextn_predict_layers = 0 (1 in the origin; model.mtp.depth of the run)\n");
    auto predicting = read(file).model;
    predicting.mtp = {.depth = 1, .loss_weight = 0.1};
    EXPECT_EQ(update(file, predicting).file, file);
    predicting.mtp.depth = 2;
    EXPECT_EQ(update(file, predicting).file, with(file, "num_nextn_predict_layers", 2));
  }
}

TEST(HuggingFaceConfig, ValuesThatChangeNothingAreFree) {
  auto file = llama();
  file.update({{"architectures", {"LlamaForCausalLM"}},
               {"torch_dtype", "bfloat16"},
               {"use_cache", false},
               {"bos_token_id", 1},
               {"eos_token_id", {1, 2}},
               {"transformers_version", "4.40"},
               {"sliding_window", nullptr},
               {"pretraining_tp", 1},
               {"head_dim", 128},
               {"quantization_config", nullptr},
               {"id2label", {{"0", "x"}}}});
  EXPECT_EQ(read(file).model, read(llama()).model);
}

TEST(HuggingFaceConfig, DropoutThatIsNotOneValueIsNoted) {
  auto const three = read(with(gpt2(), "attn_pdrop", 0.0));
  EXPECT_EQ(three.model.dropout, 0.0);
  ASSERT_EQ(three.notes.size(), 1u);
  expect_contains(three.notes[0], "model.dropout");
  EXPECT_EQ(read(with(llama(), "attention_dropout", 0.1)).notes.size(), 1u);
}

TEST(HuggingFaceConfig, NamesTheArchitecturesThatItReads) {
  expect_error([] { read({{"model_type", "olmo"}}); }, "\"gpt_oss\" or \"apertus\"");
  expect_error([] { read({{"a", 1}}); }, "found:    none");
  expect_error([] { read(Json::array()); }, "model_type");
  expect_error([] { read_hugging_face("{\"a\":1,\"a\":2}", "p"); }, "\"a\" twice");
  expect_error([] { read_hugging_face("{", "p"); }, "at byte 2");
  expect_error([] { read_hugging_face(std::string(1000, '['), "p"); }, "nested");
}

TEST(HuggingFaceConfig, WhatIsWrittenReadsBackTheSame) {
  for (auto const& overrides : std::vector<std::vector<std::string>>{
           {"model.preset=gpt2-124m", "model.dropout=0.25", "model.ffn=99"},
           {"model.preset=gpt2-tiny", "model.tied_embeddings=false", "model.norm_eps=1e-6"},
           {"model.preset=llama3-8b", "model.rope_scaling=llama3", "model.rope_scaling_factor=32",
            "model.rope_low_freq_factor=1.5", "model.rope_original_seq_len=4096"},
           {"model.preset=llama-tiny", "model.bias=true", "model.rope_scaling=linear", "model.rope_scaling_factor=3"},
           {"model.preset=llama-tiny", "model.window=5"},
           {"model.preset=llama-tiny", "model.window=16777216", "model.tied_embeddings=true", "model.kv_heads=1"},
           {"model.preset=llama-124m"},
           {"model.preset=llama-tiny", "model.head_dim=12"},
           {"model.preset=llama-tiny", "model.window=9", "model.hidden=50", "model.head_dim=12"},
           {"model.preset=qwen2.5-0.5b"},
           {"model.preset=qwen3-0.6b"},
           {"model.preset=llama-tiny", "model.qk_norm=head"},
           {"model.preset=qwen3-30b-a3b", "model.moe.first_dense=1", "model.head_dim=64"},
           {"model.preset=olmoe-1b-7b", "model.moe.normalize=true"},
           {"model.preset=smollm3-3b"},
           {"model.preset=olmo2-1b", "model.kv_heads=4"},
           {"model.preset=olmo2-7b", "model.window=[7, 7, 0, 7]", "model.layers=8"},
           {"model.preset=olmo2-7b", "model.window=[7, 0]", "model.rope_scaling=yarn", "model.rope_scaling_factor=8",
            "model.rope_scaling_layers=[0, 1]", "model.rope_attention_factor=1.25"},
           {"model.preset=olmo2-7b", "model.window=[7, 0]", "model.rope_scaling=yarn", "model.rope_scaling_factor=8",
            "model.rope_scaling_layers=[0, 1]", "model.rope_theta=1000"},
           {"model.preset=qwen3-8b", "model.rope_scaling=yarn", "model.rope_scaling_factor=4",
            "model.rope_beta_fast=9"},
           {"model.preset=llama-tiny", "model.rope_fraction=0.5", "model.window=4"},
           {"model.preset=granite3.1-2b", "model.bias=true", "model.head_dim=32"},
           {"model.preset=gemma2-2b"},
           {"model.preset=gemma2-9b", "model.window=[0, 0, 7]", "model.attention_softcap=0", "model.logits_softcap=7",
            "model.attention_multiplier=0.125", "model.rope_scaling=linear", "model.rope_scaling_factor=3"},
           {"model.preset=gemma3-270m"},
           {"model.preset=gemma3-270m", "model.logits_softcap=30"},
           {"model.preset=gemma3-1b", "model.window=[9, 0]", "model.rope_local_theta=0", "model.tied_embeddings=false"},
           {"model.preset=llama-tiny", "model.residual_multiplier=0.5", "model.attention_multiplier=0.125"},
           {"model.preset=glm4-9b", "model.rope_fraction=0.25"},
           {"model.preset=glm4-9b", "model.qkv_bias=false"},
           {"model.preset=llama-tiny", "model.rope_layers=[1, 1, 0, 1, 0]", "model.bias=true"},
           {"model.preset=llama-tiny", "model.qkv_bias=true", "model.head_dim=6"},
           {"model.preset=mixtral-tiny", "model.head_dim=12"},
           {"model.preset=qwen-moe-tiny", "model.head_dim=12", "model.qkv_bias=true"},
           {"model.preset=mixtral-8x7b", "model.moe.top_k=3"},
           {"model.preset=mixtral-tiny", "model.window=5", "model.moe.experts=5", "model.tied_embeddings=true"},
           {"model.preset=qwen-moe-tiny", "model.moe.every=3", "model.moe.normalize=true"},
           {"model.preset=qwen-moe-tiny", "model.moe.first_dense=2", "model.moe.shared_ffn=7"},
           {"model.preset=glm4.5-air", "model.rope_fraction=0.25", "model.moe.normalize=false"},
           {"model.preset=glm4.5-air", "model.qk_norm=head", "model.qkv_bias=false", "model.moe.first_dense=0"},
           {"model.preset=deepseek-moe-tiny", "model.moe.shared_ffn=96", "model.rope_scaling=yarn"},
           {"model.preset=deepseek-v3"},
           {"model.preset=deepseek-v3", "model.rope_pairs=halves", "model.mla.q_lora_rank=0"},
           {"model.preset=deepseek-v3", "model.rope_attention_factor=1.25", "model.rope_scaling_factor=40"},
           {"model.preset=deepseek-v3", "model.rope_attention_factor=0", "model.moe.first_dense=0"},
           {"model.preset=deepseek-v3", "model.attention_multiplier=0", "model.rope_truncate=false"},
           {"model.preset=moonlight-16b-a3b", "model.mla.v_head_dim=96", "model.moe.group_top_k=1",
            "model.moe.groups=2"},
           {"model.preset=deepseek-v3-tiny", "model.tied_embeddings=true"},
           {"model.preset=apertus-8b"},
           {"model.preset=apertus-70b", "model.rope_scaling=linear", "model.head_dim=64"},
           {"model.preset=phi4-mini"},
           {"model.preset=phi4-mini", "model.rope_attention_factor=1.5", "model.rope_scaling_factor=7.5",
            "model.window=0", "model.rope_original_seq_len=100"},
           {"model.preset=gpt-oss-20b"},
           {"model.preset=gpt-oss-120b", "model.swiglu_alpha=1.5", "model.swiglu_limit=3", "model.window=[9, 9, 0]",
            "model.rope_scaling=none", "model.rope_scaling_factor=1", "model.rope_original_seq_len=8192",
            "model.rope_truncate=true", "model.tied_embeddings=true"},
           {"model.preset=gpt-oss-20b", "model.bias=false", "model.qkv_bias=false", "model.window=0",
            "model.rope_attention_factor=1.5", "model.rope_truncate=true"},
           {"model.preset=llama-tiny", "model.kv_heads=12", "model.mla.kv_lora_rank=8", "model.mla.qk_nope_head_dim=6",
            "model.mla.qk_rope_head_dim=2"}}) {
    auto model = good("", overrides).model;
    auto const text = write_hugging_face(model, "bfloat16", 7);
    model.preset.clear();
    model.moe.aux_loss = AuxLoss::none, model.moe.aux_coefficient = Moe{}.aux_coefficient;  // of training
    model.moe.z_coefficient = model.moe.bias_update_rate = 0.0;
    EXPECT_EQ(read_hugging_face(text, "p").model, model) << text;
    EXPECT_EQ(Json::parse(text)["torch_dtype"], "bfloat16");
    EXPECT_EQ(Json::parse(text)["eos_token_id"], 7);
  }
}

TEST(HuggingFaceConfig, OtherFormsHaveNoName) {
  auto const form = [](std::vector<std::string> const& overrides) { return family_of(good("", overrides).model); };
  EXPECT_EQ(form({}), ModelFamily::gpt2);
  expect_error([&] { form({"model.position=rope"}); }, "position = rope, which GPT-2 does not have");
  expect_error([&] { form({"model.bias=false"}); }, "bias = false, which GPT-2");
  expect_error([&] { form({"model.kv_heads=2"}); }, "kv_heads = 2 (heads = 4), which GPT-2");
  expect_error(
      [&] {
        form({"model.preset=qwen2.5-0.5b", "model.rope_layers=[1, 0]"});
      },
      "qkv_bias = true, which SmolLM3");
  expect_error([&] { form({"model.preset=llama-tiny", "model.norm=layernorm"}); }, "norm = layernorm, which Llama");
  auto const of = [&](char const* preset, char const* word, char const* text) {
    expect_error([&] { form({std::string("model.preset=") + preset, word}); }, text);
  };
  of("llama-tiny", "model.norm_placement=post", "qk_norm = none, which OLMo 2");
  of("gemma3-1b", "model.embedding_multiplier=2", "embedding_multiplier = 2, which Gemma 3");
  of("gemma3-1b", "model.attention_multiplier=0.3", "attention_multiplier = 0.3, which Gemma 3");
  of("gemma3-1b", "model.activation=swiglu", "activation = swiglu, which Gemma 3");
  of("gemma2-2b", "model.rope_local_theta=5", "rope_local_theta = 5, which Gemma 2");
  of("gemma2-2b", "model.window=[4, 0, 5]", "window = [4, 0, 5], which Gemma 2");
  of("gemma2-2b", "model.embedding_multiplier=2", "embedding_multiplier = 2, which Gemma 2");
  of("llama-tiny", "model.attention_softcap=50", "attention_softcap = 50, which Llama");
  of("llama-tiny", "model.logits_softcap=30", "logits_softcap = 30, which Llama");
  of("llama-tiny", "model.activation=geglu", "activation = geglu, which Llama");
  of("llama-tiny", "model.norm_offset=1", "norm_offset = 1, which Llama");
  of("llama-tiny", "model.norm_placement=sandwich", "rope_pairs = halves, which GLM-4");
  of("qwen3-8b", "model.rope_fraction=0.5", "rope_fraction = 0.5, which Qwen3");
  EXPECT_EQ(form({"model.preset=llama-tiny", "model.rope_fraction=0.5"}), ModelFamily::phi3);
  of("qwen3-8b", "model.residual_multiplier=0.5", "qk_norm = head, which Granite");
  of("gpt2-tiny", "model.logits_scaling=2", "logits_scaling = 2, which GPT-2");
  of("olmo2-7b", "model.window=[4, 0, 5]", "window = [4, 0, 5], which OLMo 3");
}

TEST(HuggingFaceConfig, ExpertsMakeAMixtralOrAQwen) {
  auto const model = [](char const* preset, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), std::string("model.preset=") + preset);
    return good("", overrides).model;
  };
  EXPECT_EQ(family_of(model("mixtral-tiny", {})), ModelFamily::mixtral);
  EXPECT_EQ(family_of(model("qwen-moe-tiny", {})), ModelFamily::qwen2_moe);
  // An mlp that no layer has, and what is of training alone, have no say.
  auto const trained = model("mixtral-tiny", {"model.ffn=200", "model.moe.jitter=0.1", "model.moe.z_coefficient=0.1"});
  EXPECT_EQ(Json::parse(write_hugging_face(trained, "float32", -1))["intermediate_size"], 192);
  auto const refuses = [&](char const* preset, std::vector<std::string> const& overrides, char const* words) {
    expect_error([&] { family_of(model(preset, overrides)); }, words);
  };
  refuses("mixtral-tiny", {"model.moe.first_dense=1"}, "moe.first_dense = 1, which Mixtral does not have");
  refuses("mixtral-tiny", {"model.moe.every=2"}, "moe.every = 2, which Mixtral");
  refuses("mixtral-tiny", {"model.moe.normalize=false"}, "moe.normalize = false, which Mixtral");
  refuses("mixtral-tiny", {"model.moe.capacity_factor=1.5"}, "moe.capacity_factor = 1.5, which Mixtral");
  refuses("mixtral-tiny", {"model.bias=true"}, "bias = true, which Mixtral");
  refuses("mixtral-tiny", {"model.qkv_bias=true"}, "qkv_bias = true, which Mixtral");
  refuses("mixtral-tiny", {"model.qk_norm=full", "model.moe.every=2"}, "moe.every = 2, which OLMoE");
  refuses("qwen-moe-tiny", {"model.qk_norm=head"}, "moe.shared_ffn = 192, which Qwen3-MoE");
  refuses("llama-tiny", {"model.qk_norm=full"}, "moe.experts = 0, which OLMoE");
  refuses("olmoe-1b-7b", {"model.head_dim=64"}, "head_dim = 64, which OLMoE");
  refuses("gpt2-tiny", {"model.qk_norm=head"}, "qk_norm = head, which GPT-2");
  refuses("gpt2-tiny", {"model.head_dim=10"}, "head_dim = 10, which GPT-2");
  refuses("qwen-moe-tiny", {"model.moe.shared_gate=false"}, "moe.shared_gate = false, which Qwen2-MoE");
  refuses("qwen-moe-tiny", {"model.window=4"}, "window = 4, which Qwen2-MoE");
  refuses("deepseek-moe-tiny", {"model.moe.bias_update_rate=0"},
          "moe.score = sigmoid, moe.scale = 2.5, moe.groups = 4, moe.shared_gate = false, which Qwen2-MoE");
  refuses("mixtral-tiny", {"model.moe.choice_bias=true"}, "moe.choice_bias = true, which Mixtral");
  refuses("gpt2-tiny", {"model.moe.experts=4"}, "moe.experts = 4, which GPT-2");
}

TEST(HuggingFaceConfig, OneWindowMakesAMistral) {
  auto const model = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"model.preset=llama-tiny", "model.layers=4"});
    return good("", overrides).model;
  };
  for (auto const* same : {"model.window=7", "model.window=[7, 7]", "model.window=[7, 7, 7, 7]"}) {
    auto const file = Json::parse(write_hugging_face(model({same}), "float32", -1));
    EXPECT_EQ(file["model_type"], "mistral") << same;
    EXPECT_EQ(file["architectures"], Json{"MistralForCausalLM"});
    EXPECT_EQ(file["sliding_window"], 7);
    EXPECT_FALSE(file.contains("attention_bias")) << "no key of MistralConfig";
    EXPECT_EQ(read(file).model.window, std::vector<std::int64_t>{7});
  }
  for (auto const* none : {"model.window=0", "model.window=[0, 0]"}) {
    auto const file = Json::parse(write_hugging_face(model({none}), "float32", -1));
    EXPECT_EQ(file["model_type"], "llama") << none;
    EXPECT_FALSE(file.contains("sliding_window"));
  }
  auto const refuses = [&](std::vector<std::string> const& overrides, char const* words) {
    expect_error([&] { write_hugging_face(model(overrides), "float32", -1); }, words);
  };
  refuses({"model.window=[7, 0]"}, "window = [7, 0], which Mistral does not have");
  refuses({"model.window=[7, 0]"}, "one window for all layers");
  refuses({"model.window=[7, 7, 7, 8]"}, "window = [7, 7, 7, 8], which Mistral");
  refuses({"model.window=7", "model.bias=true"}, "bias = true, which Mistral");
  expect_error([] { family_of(good("", {"model.window=7"}).model); }, "window = 7, which GPT-2 does not have");
}

TEST(ModelLoad, TheWindowIsTheFolders) {
  p3d::test::TempDir folder;
  folder.write("config.json", mistral().dump());
  auto const load = "model.load=" + folder / "";
  EXPECT_EQ(good("", {load, "model.seq_len=64"}).model.window, std::vector<std::int64_t>{4096});
  EXPECT_EQ(good("", {load, "model.window=4096"}).model.window_of(3), 4096);
  auto const error = only_error(parse("", {load, "model.window=64"}));
  EXPECT_EQ(error.key, "model.window");
  expect_contains(error.expected, "model.window = 4096, as config.json");
}

TEST(ModelLoad, SetsTheModelAndLetsNothingElse) {
  p3d::test::TempDir folder;
  folder.write("m/config.json", with(with(llama(), "hidden_size", 64), "num_hidden_layers", 2).dump());
  auto const load = "model.load=" + folder / "m";
  auto const c = good("", {load, "model.dropout=0.5", "model.seq_len=200000", "model.heads=32"});
  EXPECT_EQ(c.model.hidden, 64);
  EXPECT_EQ(c.model.ffn, 14336);
  EXPECT_EQ(c.model.kv_heads, 8);
  EXPECT_EQ(c.model.dropout, 0.5);
  EXPECT_EQ(c.model.seq_len, 200000);
  EXPECT_EQ(c.model.load, folder / "m");
  EXPECT_EQ(good(canonical_toml(c)), c);
  auto const error = only_error(parse("[model]\nffn = 128\n", {load}));
  EXPECT_EQ(error.key, "model.ffn");
  expect_contains(error.expected, "model.ffn = 14336, as config.json");
  expect_contains(error.where, "t.toml:2:7");
  expect_contains(error.where, "model.load");
  EXPECT_EQ(only_error(parse("", {load, "model.preset=llama-tiny"})).key, "model.load");
  auto const missing = only_error(parse("", {"model.load=" + folder / "n"}));
  EXPECT_EQ(missing.key, "model.load");
  expect_contains(missing.where, "n/config.json");
  folder.write("b/config.json", "{");
  expect_contains(only_error(parse("[model]\nload = \"b\"\n", {"model.load=" + folder / "b"})).found, "byte 2");
}

TEST(ModelLoad, ExpertsAreTheFoldersAndTheirTrainingIsFree) {
  p3d::test::TempDir folder;
  folder.write("config.json", with(with(mixtral(), "hidden_size", 64), "num_hidden_layers", 2).dump());
  auto const load = "model.load=" + folder / "";
  auto const c = good("", {load, "model.moe.aux_loss=sequence", "model.moe.jitter=0.01", "parallel.ep=4"}, 4);
  EXPECT_EQ(c.model.moe.ffn, 14336);
  EXPECT_EQ(c.model.moe.aux_loss, AuxLoss::sequence);
  EXPECT_EQ(good(canonical_toml(c), {}, 4), c);
  for (auto const* other : {"model.moe.experts=4", "model.moe.top_k=1", "model.moe.choice_bias=true"})
    expect_contains(only_error(parse("", {load, other})).expected, "as config.json in that folder says");
  expect_contains(only_error(parse("", {load, "model.moe.bias_update_rate=0.001"})).expected,
                  "model.moe.choice_bias = true where model.moe.bias_update_rate is above 0");
  folder.write("config.json", llama().dump());
  expect_contains(only_error(parse("", {load, "model.moe.experts=4"})).expected, "model.moe.experts = 0");
  // Biases of the choice, which the folder has, stay as they are or move.
  folder.write("config.json", with(with(glm4_moe(), "hidden_size", 64), "num_hidden_layers", 2).dump());
  EXPECT_EQ(good("", {load}).model.moe.bias_update_rate, 0.0);
  EXPECT_TRUE(good("", {load}).model.moe.choice_bias);
  EXPECT_EQ(good("", {load, "model.moe.bias_update_rate=0.001"}).model.moe.bias_update_rate, 0.001);
}

TEST(ModelLoad, ItsFolderIsThePlaceOfWhatIsWrongInIt) {
  p3d::test::TempDir folder;
  folder.write("config.json", with(llama(), "num_key_value_heads", 4).dump());
  auto const error = only_error(parse("[model]\nload = \"" + (folder / "") + "\"\n", {"parallel.tp=8"}));
  EXPECT_EQ(error.key, "parallel.tp");
  expect_contains(error.where, "t.toml:2:8 (model.kv_heads = 4 of this model)");
}

TEST(ModelLoad, LearnedPositionsEnd) {
  p3d::test::TempDir folder;
  folder.write("config.json", with(gpt2(), "vocab_size", 256).dump());
  auto const load = "model.load=" + folder / "";
  EXPECT_EQ(good("", {load, "model.seq_len=10"}).model.seq_len, 10);
  auto const error = only_error(parse("", {load, "model.seq_len=1025"}));
  EXPECT_EQ(error.key, "model.seq_len");
  expect_contains(error.fix, "1024");
}

}  // namespace
}  // namespace p3d::config::test
