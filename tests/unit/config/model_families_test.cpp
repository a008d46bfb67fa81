// SPDX-License-Identifier: Apache-2.0
// The families of models one by one: published files are their presets, and what each family has is read or refused.

#include "hugging_face_support.hpp"

#include <p3d/base/error.hpp>

namespace p3d::config::test {
namespace {

using p3d::test::expect_error;

TEST(ModelFamilies, MistralIsALlamaWithAWindow) {
  auto const read_model = read(mistral());
  EXPECT_EQ(read_model.family, ModelFamily::mistral);
  EXPECT_STREQ(to_string(read_model.family), "mistral");
  auto expected = read(with(without(mistral(), "sliding_window"), "model_type", "llama")).model;
  EXPECT_TRUE(expected.window.empty());
  expected.window = {4096};
  EXPECT_EQ(read_model.model, expected);
  EXPECT_EQ(read(with(mistral(), "sliding_window", 1)).model.window_of(31), 1);
  // null is none, and a file that says nothing means the default of transformers.
  EXPECT_TRUE(read(with(mistral(), "sliding_window", nullptr)).model.window.empty());
  EXPECT_EQ(read(without(mistral(), "sliding_window")).model.window, std::vector<std::int64_t>{4096});
  EXPECT_EQ(read(with(without(mistral(), "num_key_value_heads"), "num_attention_heads", 16)).model.kv_heads, 8);
  EXPECT_EQ(read(with(mistral(), "num_key_value_heads", nullptr)).model.kv_heads, 32);
}

TEST(ModelFamilies, HeadDimMayDifferFromHiddenOverHeads) {
  auto const found = read_preset(nemo(), ModelFamily::mistral, {"model.preset=mistral-nemo-12b"});
  EXPECT_EQ(found.model.head_dim(), 128);
  EXPECT_EQ(read(with(llama(), "head_dim", 64)).model.head_dim(), 64);
  EXPECT_EQ(read(with(with(llama(), "hidden_size", 4000), "head_dim", 64)).model.head_dim(), 64);
  refused_file(with(llama(), "hidden_size", 4001),
               "hidden_size divisible by num_attention_heads, or head_dim: 4001 and 32");
  refused_file(with(nemo(), "head_dim", 127), "an even head_dim");
  refused_file(with(nemo(), "head_dim", 0), "head_dim, a whole number from 1");
}

TEST(ModelFamilies, Qwen2HasBiasesOfQueriesKeysAndValuesAlone) {
  auto const found = read_preset(qwen2(), ModelFamily::qwen2, {"model.preset=qwen2.5-0.5b"});
  EXPECT_TRUE(found.model.qkv_bias && !found.model.bias);
  EXPECT_EQ(read(with(without(qwen2(), "num_key_value_heads"), "num_attention_heads", 32)).model.kv_heads, 32);
  refused_file(with(qwen2(), "use_sliding_window", true), "attention to all earlier tokens");
  refused_file(with(qwen2(), "use_mrope", true), "use_mrope");
  refused_file(with(with(qwen2(), "attention_bias", true), "mlp_bias", true), "Qwen2 has biases of q, k and v alone");
}

TEST(ModelFamilies, Qwen3NormsQueriesAndKeysOfEachHead) {
  auto const found = read_preset(qwen3(), ModelFamily::qwen3, {"model.preset=qwen3-0.6b"});
  EXPECT_EQ(found.model.qk_norm, QkNorm::head);
  EXPECT_FALSE(found.model.has_qkv_bias());
  EXPECT_EQ(read(without(qwen3(), "head_dim")).model.head_dim(), 128) << "the default of Qwen3Config";
  EXPECT_EQ(read(with(without(qwen3(), "num_key_value_heads"), "num_attention_heads", 32)).model.kv_heads, 32);
  auto const odd = with(without(qwen3(), "head_dim"), "hidden_size", 1000);
  EXPECT_EQ(read(with(odd, "num_attention_heads", 24)).model.head_dim(), 128);
  refused_file(with(qwen3(), "attention_bias", true), "norms of queries and keys without biases");
  refused_file(with(qwen3(), "use_sliding_window", true), "attention to all earlier tokens");
}

TEST(ModelFamilies, Olmo2AndOlmo3NormBehindSubLayers) {
  auto const found = read_preset(olmo2(), ModelFamily::olmo2, {"model.preset=olmo2-1b"});
  EXPECT_EQ(found.model.norm_placement, NormPlacement::post);
  EXPECT_EQ(found.model.qk_norm, QkNorm::full);
  auto file = with(with(olmo2(), "model_type", "olmo3"), "sliding_window", 4096);
  auto model = found.model;
  model.window = {4096, 4096, 4096, 0};
  EXPECT_EQ(read(file).family, ModelFamily::olmo3);
  EXPECT_EQ(read(file).model, model) << "the default of Olmo3Config: every fourth layer attends to all tokens";
  auto kinds = Json::array();
  for (int l = 0; l < 16; ++l) kinds.push_back(l % 2 == 0 ? "full_attention" : "sliding_attention");
  model.window = {0, 4096};
  EXPECT_EQ(read(with(file, "layer_types", kinds)).model, model);
  kinds.erase(0);
  refused_file(with(file, "layer_types", kinds),
               "layer_types, \"full_attention\" or \"sliding_attention\" for each layer");
  Json const plain{{"rope_type", "default"}, {"rope_theta", 500000.0}};
  auto const by_kind = [&](Json const& full) {
    return with(without(file, "rope_theta"), "rope_parameters",
                {{"full_attention", full}, {"sliding_attention", plain}});
  };
  EXPECT_EQ(read(by_kind(plain)).model.rope_theta, 5e5);
  refused_file(with(file, "rope_theta", 1e4), "rope_theta = 500000, or rope_parameters of full_attention");
  refused_file(with(without(file, "rope_theta"), "rope_parameters", plain), "rope_parameters of full_attention");
  refused_file(with(file, "sliding_window", nullptr), "where a layer has sliding_attention: null");
  refused_file(by_kind(with(plain, "rope_theta", 1e4)), "one rope_theta in all kinds of layers: others");
  auto whole = with(by_kind(plain), "rope_theta", 777);
  for (char const* kind : {"full_attention", "sliding_attention"}) whole["rope_parameters"][kind].erase("rope_theta");
  expect_error([&] { read(whole); }, "rope_theta in rope_parameters of sliding_attention: another one of the whole");
  auto third = by_kind(plain);
  third["rope_parameters"]["chunked_attention"] = plain;
  refused_file(third, "rope_parameters of full_attention and sliding_attention: chunked_attention");
  // As OLMo-3-1025-7B: YaRN where there is no window.
  Json const yarn{{"rope_type", "yarn"}, {"factor", 8.0},  {"attention_factor", 1.2079441541679836},
                  {"beta_fast", 32},     {"beta_slow", 1}, {"original_max_position_embeddings", 8192},
                  {"rope_theta", 5e5}};
  auto const scaled = read(by_kind(yarn)).model;
  EXPECT_EQ(scaled.rope_scaling_layers, (std::vector<std::int64_t>{0, 0, 0, 1}));
  EXPECT_EQ(read(with(file, "rope_scaling", without(yarn, "rope_theta"))).model, scaled);
  refused_file(with(olmo2(), "attention_bias", true), "norms of queries and keys without biases");
}

TEST(ModelFamilies, GraniteMultiplies) {
  auto const found = read_preset(granite(), ModelFamily::granite, {"model.preset=granite3.1-2b"});
  EXPECT_EQ(found.model.attention_scale(), 0.015625);
  EXPECT_EQ(found.notes.size(), 1u) << "attention_dropout";
  EXPECT_EQ(read(without(granite(), "attention_multiplier")).model.attention_scale(), 1.0) << "GraniteConfig's default";
  refused_file(with(granite(), "logits_scaling", 0.0), "logits_scaling, a number from");
  refused_file(with(llama(), "logits_scaling", 8.0), "no key but those that p3d knows: \"logits_scaling\"");
}

TEST(ModelFamilies, Glm4RotatesNeighboursOfAPartOfEachHead) {
  auto const found = read_preset(glm4(), ModelFamily::glm4, {"model.preset=glm4-9b"});
  EXPECT_EQ(found.model.rotary_dim(), 64);
  EXPECT_TRUE(found.model.qkv_bias && !found.model.bias);
  EXPECT_EQ(read(without(glm4(), "partial_rotary_factor")).model.rope_fraction, 0.5) << "the default of Glm4Config";
  EXPECT_TRUE(read(without(glm4(), "attention_bias")).model.qkv_bias) << "the default of Glm4Config";
  auto newer = without(without(glm4(), "partial_rotary_factor"), "rope_theta");
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read(newer).model.rope_fraction, 0.25);
  refused_file(with(glm4(), "partial_rotary_factor", 0.01), "an even number of at least 2: 0.01 of 128");
  refused_file(with(glm4(), "partial_rotary_factor", 1.5), "partial_rotary_factor, a number from");
  refused_file(with(llama(), "partial_rotary_factor", 0.5), "rotation of the whole head");
}

TEST(ModelFamilies, Gemma2CapsScoresAndLogits) {
  auto const found = read_preset(gemma2(), ModelFamily::gemma2, {"model.preset=gemma2-2b"});
  EXPECT_EQ(found.model.attention_softcap, 50.0);
  EXPECT_EQ(found.model.logits_softcap, 30.0);
  auto const defaults = without(without(gemma2(), "attn_logit_softcapping"), "final_logit_softcapping");
  EXPECT_EQ(read(defaults).model, found.model) << "the defaults of Gemma2Config";
  auto const uncapped = with(with(gemma2(), "attn_logit_softcapping", nullptr), "final_logit_softcapping", nullptr);
  auto const m = read(uncapped).model;
  EXPECT_EQ(m.attention_softcap + m.logits_softcap, 0.0);
  auto const text = Json::parse(write_hugging_face(m, "bfloat16", -1));
  EXPECT_EQ(text["model_type"], "gemma2");
  EXPECT_TRUE(text.contains("attn_logit_softcapping") && text["attn_logit_softcapping"].is_null());
  EXPECT_TRUE(text.contains("final_logit_softcapping") && text["final_logit_softcapping"].is_null());
  // As the 9 B and the 27 B model.
  EXPECT_EQ(read(with(gemma2(), "sliding_window_size", 4096)).model, found.model);
  EXPECT_EQ(read(with(gemma2(), "query_pre_attn_scalar", 144)).model.attention_scale(), 1.0 / 12.0);
  auto layers = gemma2();
  for (int l = 0; l < 26; ++l) layers["layer_types"].push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  EXPECT_EQ(read(layers).model, found.model);
  auto const scaled = read(with(gemma2(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}})).model;
  EXPECT_TRUE(scaled.scales_rope(0) && scaled.scales_rope(1));
  EXPECT_EQ(read_hugging_face(write_hugging_face(scaled, "bfloat16", -1), "p").model, scaled);
  refused_file(with(gemma2(), "attn_logit_softcapping", 0.0), "attn_logit_softcapping, a number from 0.001");
  refused_file(with(gemma2(), "final_logit_softcapping", true), "final_logit_softcapping, a number from 0.001");
  refused_file(with(gemma2(), "hidden_act", "silu"), "as hidden_activation says: the string \"silu\"");
  refused_file(with(gemma2(), "sliding_window_size", 5), "sliding_window_size = sliding_window: the number 5");
  refused_file(with(gemma2(), "attention_bias", true), "norms of queries and keys without biases");
  Json const plain{{"rope_type", "default"}, {"rope_theta", 1e4}}, other{{"rope_type", "default"}, {"rope_theta", 1e5}};
  refused_file(with(gemma2(), "rope_parameters", {{"full_attention", plain}, {"sliding_attention", other}}),
               "rope_parameters of one kind for all layers: an object for each kind");
  refused_file(with(llama(), "attn_logit_softcapping", 50.0), "scores of any size");
  refused_file(with(llama(), "final_logit_softcapping", 30.0), "logits of any size");
}

TEST(ModelFamilies, Gemma3HasTwoBasesAndWeightsBesideOne) {
  auto const found = read_preset(gemma3(), ModelFamily::gemma3_text, {"model.preset=gemma3-1b"});
  EXPECT_EQ(found.model.attention_multiplier, 0.0) << "query_pre_attn_scalar is head_dim";
  auto const m = read(with(gemma3(), "query_pre_attn_scalar", 168)).model;
  EXPECT_EQ(m.attention_scale(), 1.0 / std::sqrt(168.0));
  EXPECT_EQ(Json::parse(write_hugging_face(m, "bfloat16", -1))["query_pre_attn_scalar"], 168);
  EXPECT_EQ(read_hugging_face(write_hugging_face(m, "bfloat16", -1), "p").model, m);
  EXPECT_EQ(read(with(gemma3(), "rope_local_base_freq", 1000000)).model.rope_local_theta, 0.0);
  // As transformers 5 writes the 4 B model: the frequencies of layers without a window are scaled.
  auto newer = without(without(gemma3(), "rope_theta"), "rope_local_base_freq");
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  auto const scaled = read(newer).model;
  EXPECT_EQ(scaled.rope_local_theta, 1e4);
  // The base of layers with a window has a default of its own.
  newer["rope_parameters"]["sliding_attention"].erase("rope_theta");
  EXPECT_EQ(read(newer).model, scaled);
  EXPECT_EQ(read(with(newer, "rope_local_base_freq", 2e4)).model.rope_local_theta, 2e4);
  newer["rope_parameters"].erase("sliding_attention");
  EXPECT_EQ(read(newer).model, scaled);
  refused_file(with(newer, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}),
               "rope_parameters of full_attention and sliding_attention");
  EXPECT_EQ(scaled.rope_scaling, RopeScaling::linear);
  EXPECT_EQ(scaled.rope_scaling_layers, (std::vector<std::int64_t>{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(read_hugging_face(write_hugging_face(scaled, "bfloat16", -1), "p").model, scaled);
  auto const capped = read(with(gemma3(), "final_logit_softcapping", 30)).model;
  EXPECT_EQ(capped.attention_softcap, 0.0);
  EXPECT_EQ(capped.logits_softcap, 30.0);
  EXPECT_EQ(read_hugging_face(write_hugging_face(capped, "bfloat16", -1), "p").model, capped);
  refused_file(with(gemma3(), "attn_logit_softcapping", 50.0), "transformers does not apply it");
  auto caps_scores = capped;
  caps_scores.attention_softcap = 50.0;
  test::expect_error([&] { write_hugging_face(caps_scores, "bfloat16", -1); }, "attention_softcap = 50, which Gemma 3");
  refused_file(with(gemma3(), "_sliding_window_pattern", 2), "layer_types, or sliding_window_pattern: the number 2");
  // Versions of transformers read these differently.
  Json const old{{"type", "linear"}, {"factor", 2.0}};
  refused_file(with(gemma3(), "rope_scaling", old), "rope_type: type alone");
  Json const cut{
      {"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 512}, {"truncate", false}};
  refused_file(with(gemma3(), "rope_scaling", cut), "truncate = true");
  EXPECT_FALSE(Json::parse(write_hugging_face(m, "bfloat16", -1)).contains("attn_logit_softcapping"));
  refused_file(with(gemma3(), "hidden_activation", "silu"), "p3d's geglu has the tanh form");
  refused_file(with(gemma3(), "use_bidirectional_attention", true), "attention to earlier tokens");
}

TEST(ModelFamilies, QueriesOfMinistral3GrowWithTheirPosition) {
  // The text model of Ministral-3-8B.
  Json const file{{"model_type", "ministral3"},
                  {"vocab_size", 131072},
                  {"max_position_embeddings", 262144},
                  {"hidden_size", 4096},
                  {"intermediate_size", 14336},
                  {"num_hidden_layers", 34},
                  {"num_attention_heads", 32},
                  {"num_key_value_heads", 8},
                  {"head_dim", 128},
                  {"hidden_act", "silu"},
                  {"rms_norm_eps", 1e-5},
                  {"sliding_window", nullptr},
                  {"attention_dropout", 0.0},
                  {"tie_word_embeddings", false},
                  {"rope_parameters",
                   {{"type", "yarn"},
                    {"rope_type", "yarn"},
                    {"rope_theta", 1000000.0},
                    {"factor", 16.0},
                    {"original_max_position_embeddings", 16384},
                    {"max_position_embeddings", 262144},
                    {"beta_fast", 32.0},
                    {"beta_slow", 1.0},
                    {"mscale", 1.0},
                    {"mscale_all_dim", 1.0},
                    {"llama_4_scaling_beta", 0.1}}}};
  auto const found = read(file);
  EXPECT_EQ(found.family, ModelFamily::ministral3);
  EXPECT_EQ(found.model.rope_query_beta, 0.1);
  EXPECT_EQ(found.model.rope_original_seq_len, 16384);
  EXPECT_EQ(found.model.rope_attention_factor, 1.0) << "mscale and mscale_all_dim are alike";
  EXPECT_EQ(read_hugging_face(write_hugging_face(found.model, "bfloat16", -1), "p").model, found.model);
  EXPECT_EQ(read_hugging_face(write_hugging_face(found.model, "bfloat16", -1), "p").family, ModelFamily::ministral3);
  refused_file(without(file, "rope_parameters"), "rope_parameters, an object");
  auto llama_form = file;
  llama_form["model_type"] = "mistral";
  EXPECT_THROW(read(llama_form), base::Error) << "llama_4_scaling_beta is of this family alone";
}

TEST(ModelFamilies, AnOriginIsTakenWhereItsFileCanSayTheModel) {
  auto const qwen = good("", {"model.preset=qwen2.5-0.5b"}).model, plain = good("", {"model.preset=llama-tiny"}).model;
  EXPECT_EQ(family_of(qwen, ModelFamily::llama), ModelFamily::qwen2) << "no key of LlamaConfig gives q, k and v biases";
  EXPECT_EQ(family_of(plain, ModelFamily::qwen2), ModelFamily::llama) << "Qwen2 always has them";
  EXPECT_EQ(family_of(plain, ModelFamily::mistral), ModelFamily::mistral);
  EXPECT_TRUE(Json::parse(write_hugging_face(plain, "float32", -1, ModelFamily::mistral))["sliding_window"].is_null());
}

TEST(ModelFamilies, Phi3IsKnownByItsFile) {
  // As Phi-4: a Llama with fused tensors.
  Json const phi4{
      {"model_type", "phi3"},         {"vocab_size", 100352},        {"max_position_embeddings", 16384},
      {"hidden_size", 5120},          {"intermediate_size", 17920},  {"num_hidden_layers", 40},
      {"num_attention_heads", 40},    {"num_key_value_heads", 10},   {"hidden_act", "silu"},
      {"rms_norm_eps", 1e-5},         {"rope_theta", 250000},        {"rope_scaling", nullptr},
      {"resid_pdrop", 0.0},           {"embd_pdrop", 0.0},           {"sliding_window", nullptr},
      {"attention_bias", false},      {"attention_dropout", 0.0},    {"original_max_position_embeddings", 16384},
      {"partial_rotary_factor", 1.0}, {"tie_word_embeddings", false}};
  auto const found = read_preset(phi4, ModelFamily::phi3, {"model.preset=phi4"});
  EXPECT_EQ(family_of(found.model), ModelFamily::llama) << "without its file";
  EXPECT_EQ(family_of(found.model, ModelFamily::phi3), ModelFamily::phi3);
  auto const text = write_hugging_face(found.model, "bfloat16", -1, ModelFamily::phi3);
  EXPECT_EQ(read_hugging_face(text, "p").family, ModelFamily::phi3);
  EXPECT_EQ(read_hugging_face(text, "p").model, found.model);
  EXPECT_EQ(read(with(phi4, "sliding_window", 2047)).model.window, std::vector<std::int64_t>{2047});
  EXPECT_EQ(read(with(phi4, "partial_rotary_factor", 0.75)).model.rotary_dim(), 96);
  EXPECT_EQ(read(with(phi4, "resid_pdrop", 0.1)).notes.size(), 1u);
  refused_file(with(with(phi4, "attention_bias", true), "mlp_bias", true), "Phi-3 has no biases");
  refused_file(with(phi4, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), "no rope_scaling but longrope");
}

TEST(ModelFamilies, Phi3MayHaveOtherFrequenciesForLongTexts) {
  auto const file = phi4_mini();
  auto const m = read_preset(file, ModelFamily::phi3, {"model.preset=phi4-mini"}).model;
  EXPECT_EQ(m.rope_scaling_factor, 32.0) << "max_position_embeddings / original_max_position_embeddings";
  EXPECT_EQ(m.rope_attention_factor, 0.0);
  EXPECT_EQ(family_of(m), ModelFamily::phi3) << "no other family has longrope";
  auto const changed = [&](Json const& changes) {
    auto out = file;
    out["rope_scaling"].update(changes);
    return out;
  };
  EXPECT_EQ(read(changed({{"factor", 5.0}})).model.rope_scaling_factor, 5.0);
  EXPECT_EQ(read(changed({{"attention_factor", 1.25}})).model.rope_attention_factor, 1.25);
  EXPECT_EQ(read(changed({{"original_max_position_embeddings", 4096}})).model, m);
  EXPECT_EQ(read(without(file, "original_max_position_embeddings")).model, m) << "the default of Phi3Config";
  EXPECT_EQ(read(with(file, "max_position_embeddings", 2048)).model.rope_scaling_factor, 1.0);
  for (auto const& model : {m, read(changed({{"factor", 5.0}, {"attention_factor", 1.25}})).model}) {
    auto const text = Json::parse(write_hugging_face(model, "bfloat16", -1));
    EXPECT_EQ(text["original_max_position_embeddings"], 4096) << "transformers goes by this key alone";
    EXPECT_EQ(read(text).model, model);
  }
  refused_file(changed({{"original_max_position_embeddings", 8192}}), "original_max_position_embeddings = 4096, as");
  refused_file(changed({{"short_factor", {1.0, 2.0}}}), "a number for each of 48 pairs of dimensions: 2 and 48");
  refused_file(changed({{"long_factor", "many"}}), "long_factor, a list of numbers from");
  refused_file(changed({{"beta_fast", 1}}), "\"beta_fast\"");
  refused_file(with(file, "rope_scaling", {{"type", "su"}}), "or \"longrope\"");
  expect_error(
      [&] {
        family_of(good("", {"model.preset=phi4-mini", "model.qk_norm=head"}).model);
      },
      "rope_scaling = longrope");
}

TEST(ModelFamilies, Qwen3MoeAndOlmoeHaveExpertsBesideNorms) {
  auto const of_training = [](char const* preset) {  // which no config.json says
    return std::vector<std::string>{std::string("model.preset=") + preset, "model.moe.aux_loss=none",
                                    "model.moe.aux_coefficient=0.01", "model.moe.z_coefficient=0"};
  };
  auto const qwen = read_preset(qwen3_moe(), ModelFamily::qwen3_moe, of_training("qwen3-30b-a3b"));
  EXPECT_EQ(qwen.model.qk_norm, QkNorm::head);
  EXPECT_EQ(qwen.model.moe.shared_ffn, 0);
  auto const other = read_preset(olmoe(), ModelFamily::olmoe, of_training("olmoe-1b-7b"));
  EXPECT_EQ(other.model.qk_norm, QkNorm::full);
  // transformers 5 writes another key.
  auto renamed = with(without(qwen3_moe(), "num_experts"), "num_local_experts", 128);
  EXPECT_EQ(read(renamed).model, qwen.model);
  refused_file(with(qwen3_moe(), "num_local_experts", 64),
               "num_local_experts = 128, as num_experts says: the number 64");
  EXPECT_EQ(read(without(olmoe(), "num_experts")).model.moe.experts, 64) << "the default of OlmoeConfig";
  refused_file(with(olmoe(), "clip_qkv", 8.0),
               "clip_qkv = null (p3d's model has queries, keys and values of any size)");
  refused_file(with(olmoe(), "attention_bias", true), "norms of queries and keys without biases");
  refused_file(with(olmoe(), "head_dim", 64), "OLMoE's norms have hidden_size weights");
}

TEST(ModelFamilies, SomeLayersOfSmolLm3DoNotRotate) {
  auto const found = read_preset(smollm3(), ModelFamily::smollm3, {"model.preset=smollm3-3b"});
  EXPECT_TRUE(found.model.rotates(0) && found.model.rotates(34));
  EXPECT_FALSE(found.model.rotates(3) || found.model.rotates(35));
  auto const of = [](char const* key, Json const& value) {
    return read(with(smollm3(), key, value)).model.rope_layers;
  };
  EXPECT_EQ(of("no_rope_layers", nullptr), (std::vector<std::int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(read(with(without(smollm3(), "no_rope_layers"), "no_rope_layer_interval", 3)).model.rope_layers,
            (std::vector<std::int64_t>{1, 1, 0}));
  EXPECT_TRUE(of("no_rope_layers", Json(36, 1)).empty());
  EXPECT_EQ(of("no_rope_layers", Json(40, 0)), std::vector<std::int64_t>{0});
  EXPECT_TRUE(read(without(smollm3(), "tie_word_embeddings")).model.tied_embeddings);
  for (auto const& list : {Json(35, 1), Json(36, 2), Json(36, 0.5), Json(36, true), Json("all")})
    refused_file(with(smollm3(), "no_rope_layers", list), "no_rope_layers, a list of 0 and 1");
  refused_file(with(smollm3(), "use_sliding_window", true), "attention to all earlier tokens");
  refused_file(with(smollm3(), "no_rope_layer_interval", 0), "no_rope_layer_interval, a whole number from 1");
}

TEST(ModelFamilies, MixtralIsThePreset) {
  auto expected = good("", {"model.preset=mixtral-8x7b"}).model;
  expected.preset.clear();
  expected.moe.aux_loss = AuxLoss::none, expected.moe.aux_coefficient = Moe{}.aux_coefficient;
  auto const found = read(mixtral());
  EXPECT_EQ(found.family, ModelFamily::mixtral);
  EXPECT_EQ(found.model, expected);
  EXPECT_TRUE(found.notes.empty());
  EXPECT_EQ(read(with(mixtral(), "output_router_logits", true)).notes.size(), 1u);
  EXPECT_EQ(read(with(mixtral(), "router_jitter_noise", 0.1)).notes.size(), 1u);
  EXPECT_EQ(read(with(mixtral(), "sliding_window", 4096)).model.window_of(3), 4096);
  auto shorter = mixtral();
  for (auto const* key : {"rms_norm_eps", "rope_theta", "num_local_experts", "num_experts_per_tok", "sliding_window",
                          "num_key_value_heads"})
    shorter.erase(key);
  EXPECT_EQ(read(shorter).model, expected) << "the defaults of MixtralConfig";
  refused_file(with(mixtral(), "num_experts_per_tok", 9),
               "num_experts_per_tok of at most num_local_experts = 8: the number 9");
  refused_file(with(with(mixtral(), "num_experts_per_tok", 1), "num_local_experts", 0),
               "num_local_experts, a whole number from 1 to 65536");
  refused_file(with(mixtral(), "num_experts", 8), "\"num_experts\"");
  refused_file(with(llama(), "num_local_experts", 8), "\"num_local_experts\"");
}

TEST(ModelFamilies, QwenHasSharedExpertsAndDenseLayers) {
  auto const found = read(qwen2_moe());
  EXPECT_EQ(found.family, ModelFamily::qwen2_moe);
  auto const& moe = found.model.moe;
  EXPECT_EQ(moe.experts, 60);
  EXPECT_EQ(moe.top_k, 4);
  EXPECT_EQ(moe.ffn, 1408);
  EXPECT_EQ(moe.shared_ffn, 5632);
  EXPECT_TRUE(moe.shared_gate);
  EXPECT_FALSE(moe.normalize);
  EXPECT_EQ(found.model.ffn, 5632);
  EXPECT_EQ(found.model.moe_layers(), 24);
  EXPECT_TRUE(found.model.window.empty());
  auto const layers = [](Json list, int step) {
    auto const m = read(with(with(qwen2_moe(), "mlp_only_layers", std::move(list)), "decoder_sparse_step", step)).model;
    std::vector<std::int64_t> dense;
    for (std::int64_t l = 0; l < 8; ++l)
      if (!m.has_experts(l)) dense.push_back(l);
    return dense;
  };
  using Dense = std::vector<std::int64_t>;
  EXPECT_EQ(layers(Json::array(), 1), Dense{});
  EXPECT_EQ(layers({1, 0}, 1), (Dense{0, 1}));
  EXPECT_EQ(layers({1}, 2), (Dense{0, 1, 2, 4, 6})) << "layer 0 has no experts anyway";
  for (auto const& list : {Json{1}, Json{0, 2}, Json{24}, Json{-1}, Json("all"), Json{0, "one"}})
    refused_file(with(qwen2_moe(), "mlp_only_layers", list), "mlp_only_layers, a list of the first layers");
  refused_file(with(qwen2_moe(), "decoder_sparse_step", 25), "a layer with experts: none");
  EXPECT_FALSE(found.model.has_qkv_bias());
  EXPECT_TRUE(read(without(qwen2_moe(), "qkv_bias")).model.qkv_bias) << "the default of Qwen2MoeConfig";
  EXPECT_FALSE(read(without(qwen2_moe(), "qkv_bias")).model.bias);
  refused_file(with(qwen2_moe(), "use_sliding_window", true), "attention to all earlier tokens");
  EXPECT_TRUE(read(with(qwen2_moe(), "layer_types", {"full_attention"})).model.window.empty());
  refused_file(with(qwen2_moe(), "layer_types", {"full_attention", "sliding_attention"}),
               "layer_types of full_attention");
}

}  // namespace
}  // namespace p3d::config::test
