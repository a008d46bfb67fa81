// SPDX-License-Identifier: Apache-2.0
// Which tensor of transformers holds which element of which parameter.

#include <p3d/layout/hugging_face.hpp>

#include <p3d/config/config.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace p3d::layout {
namespace {

config::Config gpt2(bool tied) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 11, m.hidden = 8, m.layers = 2, m.heads = m.kv_heads = 2, m.ffn = 12, m.seq_len = 5;
  m.tied_embeddings = tied;
  return c;
}
config::Config llama(bool bias) {
  auto c = gpt2(false);
  auto& m = c.model;
  m.kv_heads = 1, m.bias = bias;
  m.norm = config::Norm::rmsnorm, m.position = config::Position::rope, m.activation = config::Activation::swiglu;
  return c;
}

/// With experts in layer 1 alone, or in both.
config::Config experts(bool shared) {
  auto c = llama(false);
  auto& m = c.model.moe;
  m.experts = 3, m.ffn = 6;
  if (shared) m.every = 2, m.shared_ffn = 10, m.shared_gate = true;
  return c;
}

/// Of GLM-4.5, with experts in layer 1 alone.
config::Config glm4_moe() {
  auto c = llama(false);
  c.model.qkv_bias = true, c.model.head_size = 4;
  auto& m = c.model.moe;
  m.experts = 4, m.ffn = 6, m.first_dense = 1, m.shared_ffn = 12;
  m.score = config::RouterScore::sigmoid, m.choice_bias = true;
  return c;
}

config::Config gpt_oss() {
  auto c = llama(true);
  auto& m = c.model;
  m.qkv_bias = m.attention_sinks = m.moe.bias = true;
  m.activation = config::Activation::swiglu_clamped;
  m.moe.experts = 3, m.moe.ffn = 6;
  return c;
}

config::Config apertus() {
  auto c = llama(false);
  c.model.activation = config::Activation::xielu, c.model.qk_norm = config::QkNorm::head;
  return c;
}

struct Made {
  ParamTable table;
  HuggingFaceLayout layout;
};
Made make(config::Config const& c, std::optional<config::ModelFamily> origin = {}) {
  auto table = make_param_table(c);
  auto layout = hugging_face_layout(config::family_of(c.model, origin), c.model, table);
  return {std::move(table), std::move(layout)};
}
std::map<std::string, std::vector<std::int64_t>> shapes(HuggingFaceLayout const& layout) {
  std::map<std::string, std::vector<std::int64_t>> out;
  for (auto const& t : layout.tensors) EXPECT_TRUE(out.emplace(t.name, t.shape).second) << t.name;
  return out;
}

TEST(HuggingFaceLayout, NamesTheTensorsOfGpt2) {
  auto const found = shapes(make(gpt2(true)).layout);
  EXPECT_EQ(found.size(), 2u + 2 * 12 + 2);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.at("transformer.wte.weight"), (Shape{11, 8}));
  EXPECT_EQ(found.at("transformer.wpe.weight"), (Shape{5, 8}));
  EXPECT_EQ(found.at("transformer.h.1.ln_1.bias"), (Shape{8}));
  EXPECT_EQ(found.at("transformer.h.1.attn.c_attn.weight"), (Shape{8, 24}));
  EXPECT_EQ(found.at("transformer.h.0.attn.c_attn.bias"), (Shape{24}));
  EXPECT_EQ(found.at("transformer.h.1.attn.c_proj.weight"), (Shape{8, 8}));
  EXPECT_EQ(found.at("transformer.h.0.mlp.c_fc.weight"), (Shape{8, 12}));
  EXPECT_EQ(found.at("transformer.h.0.mlp.c_proj.weight"), (Shape{12, 8}));
  EXPECT_EQ(found.at("transformer.ln_f.weight"), (Shape{8}));
  EXPECT_EQ(shapes(make(gpt2(false)).layout).at("lm_head.weight"), (Shape{11, 8}));
}

TEST(HuggingFaceLayout, NamesTheTensorsOfLlama) {
  auto const found = shapes(make(llama(false)).layout);
  EXPECT_EQ(found.size(), 1u + 2 * 9 + 2);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.at("model.embed_tokens.weight"), (Shape{11, 8}));
  EXPECT_EQ(found.at("model.layers.1.input_layernorm.weight"), (Shape{8}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.q_proj.weight"), (Shape{8, 8}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.k_proj.weight"), (Shape{4, 8}));
  EXPECT_EQ(found.at("model.layers.0.self_attn.o_proj.weight"), (Shape{8, 8}));
  EXPECT_EQ(found.at("model.layers.0.mlp.gate_proj.weight"), (Shape{12, 8}));
  EXPECT_EQ(found.at("model.layers.0.mlp.down_proj.weight"), (Shape{8, 12}));
  EXPECT_EQ(found.at("model.layers.0.post_attention_layernorm.weight"), (Shape{8}));
  EXPECT_EQ(found.at("model.norm.weight"), (Shape{8}));
  EXPECT_EQ(found.at("lm_head.weight"), (Shape{11, 8}));
  EXPECT_EQ(shapes(make(llama(true)).layout).at("model.layers.1.self_attn.v_proj.bias"), (Shape{4}));
}

TEST(HuggingFaceLayout, ApertusHasSlopesAndConstants) {
  auto const made = make(apertus());
  auto const found = shapes(made.layout);
  EXPECT_EQ(found.size(), 1u + 2 * 12 + 2);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.at("model.layers.1.attention_layernorm.weight"), (Shape{8}));
  EXPECT_EQ(found.at("model.layers.1.feedforward_layernorm.weight"), (Shape{8}));
  EXPECT_EQ(found.at("model.layers.0.self_attn.k_norm.weight"), (Shape{4}));
  EXPECT_EQ(found.at("model.layers.0.mlp.up_proj.weight"), (Shape{12, 8}));
  EXPECT_EQ(found.at("model.layers.0.mlp.act_fn.alpha_p"), (Shape{1}));
  EXPECT_EQ(found.at("model.layers.1.mlp.act_fn.alpha_n"), (Shape{1}));
  EXPECT_EQ(found.count("model.layers.0.mlp.gate_proj.weight"), 0u);
  ASSERT_EQ(made.layout.constants.size(), 4u);
  EXPECT_EQ(made.layout.constants[2].name, "model.layers.1.mlp.act_fn.beta");
  EXPECT_EQ(made.layout.constants[2].value, 0.5);
  EXPECT_EQ(made.layout.constants[3].name, "model.layers.1.mlp.act_fn.eps");
  EXPECT_EQ(made.layout.constants[3].value, -1e-6);
  EXPECT_TRUE(make(llama(false)).layout.constants.empty());
}

TEST(HuggingFaceLayout, MistralHasTheTensorsOfLlama) {
  auto windowed = llama(false);
  windowed.model.window = {3};
  auto const mistral = make(windowed).layout, plain = make(llama(false)).layout;
  EXPECT_EQ(mistral.family, config::ModelFamily::mistral);
  EXPECT_EQ(plain.family, config::ModelFamily::llama);
  EXPECT_EQ(shapes(mistral), shapes(plain));
}

TEST(HuggingFaceLayout, Qwen2HasBiasesOfQueriesKeysAndValuesAlone) {
  auto c = llama(false);
  c.model.qkv_bias = true, c.model.head_size = 6;
  auto const qwen2 = make(c).layout;
  EXPECT_EQ(qwen2.family, config::ModelFamily::qwen2);
  auto const found = shapes(qwen2);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.size(), shapes(make(llama(false)).layout).size() + 2 * 3);
  EXPECT_EQ(found.at("model.layers.0.self_attn.q_proj.bias"), (Shape{12}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.v_proj.bias"), (Shape{6}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.k_proj.weight"), (Shape{6, 8}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.o_proj.weight"), (Shape{8, 12}));
}

TEST(HuggingFaceLayout, Qwen3AndOlmoeNormQueriesAndKeys) {
  auto c = llama(false);
  c.model.qk_norm = config::QkNorm::head, c.model.head_size = 6;
  auto const qwen3 = make(c).layout;
  EXPECT_EQ(qwen3.family, config::ModelFamily::qwen3);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shapes(qwen3).size(), shapes(make(llama(false)).layout).size() + 2 * 2);
  EXPECT_EQ(shapes(qwen3).at("model.layers.0.self_attn.q_norm.weight"), (Shape{6}));
  EXPECT_EQ(shapes(qwen3).at("model.layers.1.self_attn.k_norm.weight"), (Shape{6}));
  auto olmoe = experts(false);
  olmoe.model.qk_norm = config::QkNorm::full, olmoe.model.moe.normalize = false;
  auto const found = make(olmoe).layout;
  EXPECT_EQ(found.family, config::ModelFamily::olmoe);
  EXPECT_EQ(shapes(found).at("model.layers.0.self_attn.q_norm.weight"), (Shape{8}));
  EXPECT_EQ(shapes(found).at("model.layers.0.self_attn.k_norm.weight"), (Shape{4}));
  EXPECT_EQ(shapes(found).at("model.layers.1.mlp.experts.2.gate_proj.weight"), (Shape{6, 8}));
  olmoe.model.qk_norm = config::QkNorm::head;
  EXPECT_EQ(make(olmoe).layout.family, config::ModelFamily::qwen3_moe);
}

TEST(HuggingFaceLayout, Olmo2AndGlm4HaveNormsBehindSubLayers) {
  auto c = llama(false);
  c.model.norm_placement = config::NormPlacement::post, c.model.qk_norm = config::QkNorm::full;
  auto const olmo2 = shapes(make(c).layout);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(olmo2.at("model.layers.0.post_attention_layernorm.weight"), (Shape{8}));
  EXPECT_EQ(olmo2.at("model.layers.1.post_feedforward_layernorm.weight"), (Shape{8}));
  EXPECT_FALSE(olmo2.contains("model.layers.0.input_layernorm.weight"));
  c.model.window = {3, 0};
  EXPECT_EQ(make(c).layout.family, config::ModelFamily::olmo3);
  EXPECT_EQ(shapes(make(c).layout), olmo2);
  auto glm4 = llama(false);
  glm4.model.norm_placement = config::NormPlacement::sandwich, glm4.model.rope_pairs = config::RopePairs::neighbours;
  auto const made = make(glm4);
  auto const found = shapes(made.layout);
  EXPECT_EQ(made.layout.family, config::ModelFamily::glm4);
  EXPECT_EQ(found.size(), 1u + 2 * (9 - 1 + 2) + 2) << "gate and up share a tensor; two norms more";
  EXPECT_EQ(found.at("model.layers.1.mlp.gate_up_proj.weight"), (Shape{24, 8}));
  for (char const* norm : {"input", "post_self_attn", "post_attention", "post_mlp"})
    EXPECT_EQ(found.at(std::string("model.layers.0.") + norm + "_layernorm.weight"), (Shape{8}));
  auto const& specs = made.table.specs();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].name.ends_with("mlp.up.weight")) continue;
    EXPECT_EQ(made.layout.places[i].tensor, made.layout.places[i - 1].tensor);
    EXPECT_EQ(made.layout.places[i].first, 12) << "behind the rows of the gate";
  }
}

TEST(HuggingFaceLayout, Gemma2And3HaveFourNormsInALayer) {
  auto c = llama(false);
  c.model.norm_placement = config::NormPlacement::sandwich, c.model.norm_offset = 1;
  c.model.qk_norm = config::QkNorm::head, c.model.activation = config::Activation::geglu;
  c.model.embedding_multiplier = std::sqrt(8.0);
  auto const made = make(c).layout;
  EXPECT_EQ(made.family, config::ModelFamily::gemma3_text);
  c.model.qk_norm = config::QkNorm::none;
  auto const older = make(c).layout;
  EXPECT_EQ(older.family, config::ModelFamily::gemma2);
  for (char const* norm : {"input", "post_attention", "pre_feedforward", "post_feedforward"})
    for (auto const& one : {made, older})
      EXPECT_TRUE(shapes(one).contains(std::string("model.layers.1.") + norm + "_layernorm.weight")) << norm;
}

TEST(HuggingFaceLayout, Phi3JoinsTensorsAndIsKnownByItsOrigin) {
  auto const c = llama(false);
  EXPECT_EQ(make(c).layout.family, config::ModelFamily::llama);
  auto const made = make(c, config::ModelFamily::phi3);
  EXPECT_EQ(made.layout.family, config::ModelFamily::phi3);
  auto const found = shapes(made.layout);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.size(), 1u + 2 * 6 + 2);
  EXPECT_EQ(found.at("model.layers.0.self_attn.qkv_proj.weight"), (Shape{16, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.gate_up_proj.weight"), (Shape{24, 8}));
  for (std::size_t i = 0; i < made.table.specs().size(); ++i) {
    auto const& name = made.table.specs()[i].name;
    EXPECT_EQ(made.layout.places[i].first, name.ends_with("k.weight")    ? 8
                                           : name.ends_with("v.weight")  ? 12
                                           : name.ends_with("up.weight") ? 12
                                                                         : 0)
        << name;
  }
  EXPECT_EQ(make(llama(true), config::ModelFamily::phi3).layout.family, config::ModelFamily::llama) << "it has biases";
}

TEST(HuggingFaceLayout, EveryExpertHasTensorsOfItsOwn) {
  auto const mixtral = make(experts(false)).layout, qwen = make(experts(true)).layout;
  EXPECT_EQ(mixtral.family, config::ModelFamily::mixtral);
  EXPECT_EQ(qwen.family, config::ModelFamily::qwen2_moe);
  auto found = shapes(mixtral);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.size(), 1u + 2 * (6 + 1 + 9) + 2);
  EXPECT_EQ(found.at("model.layers.0.block_sparse_moe.gate.weight"), (Shape{3, 8}));
  EXPECT_EQ(found.at("model.layers.1.block_sparse_moe.experts.2.w1.weight"), (Shape{6, 8}));
  EXPECT_EQ(found.at("model.layers.1.block_sparse_moe.experts.0.w2.weight"), (Shape{8, 6}));
  EXPECT_EQ(found.at("model.layers.0.block_sparse_moe.experts.1.w3.weight"), (Shape{6, 8}));
  found = shapes(qwen);
  EXPECT_EQ(found.size(), 1u + 6 + 3 + (6 + 1 + 9 + 3 + 1) + 2);
  EXPECT_EQ(found.at("model.layers.0.mlp.gate_proj.weight"), (Shape{12, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.gate.weight"), (Shape{3, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.2.gate_proj.weight"), (Shape{6, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.2.down_proj.weight"), (Shape{8, 6}));
  EXPECT_EQ(found.at("model.layers.1.mlp.shared_expert.down_proj.weight"), (Shape{8, 10}));
  EXPECT_EQ(found.at("model.layers.1.mlp.shared_expert_gate.weight"), (Shape{1, 8}));
}

TEST(HuggingFaceLayout, Glm45StoresTheBiasesOfTheChoice) {
  auto c = glm4_moe();
  c.model.moe.aux_loss = config::AuxLoss::global;
  auto const made = make(c);
  EXPECT_EQ(made.layout.family, config::ModelFamily::glm4_moe);
  auto const found = shapes(made.layout);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.size(), 1u + 2 * 9 + 3 + (1 + 1 + 12 + 3) + 2) << "without the load of experts";
  EXPECT_EQ(found.at("model.layers.1.mlp.gate.weight"), (Shape{4, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.gate.e_score_correction_bias"), (Shape{4}));
  EXPECT_EQ(found.at("model.layers.1.mlp.shared_experts.up_proj.weight"), (Shape{12, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.3.down_proj.weight"), (Shape{8, 6}));
  EXPECT_EQ(found.at("model.layers.0.self_attn.k_proj.bias"), (Shape{4}));
  for (auto const& t : made.layout.tensors) EXPECT_EQ(t.wide, t.name.ends_with("e_score_correction_bias")) << t.name;
  for (std::size_t i = 0; i < made.table.specs().size(); ++i)
    EXPECT_EQ(made.layout.places[i].stored(), !made.table.specs()[i].name.ends_with(".load"));
}

TEST(HuggingFaceLayout, BlocksOfMultiTokenPredictionAreLayersBehindTheOthers) {
  for (bool const tied : {true, false}) {
    auto c = glm4_moe();
    c.model.tied_embeddings = tied;
    c.model.mtp.depth = 2;
    auto const made = make(c);
    auto const found = shapes(made.layout);
    using Shape = std::vector<std::int64_t>;
    for (std::string const layer : {"model.layers.2.", "model.layers.3."}) {
      EXPECT_EQ(found.at(layer + "enorm.weight"), (Shape{8}));
      EXPECT_EQ(found.at(layer + "hnorm.weight"), (Shape{8}));
      EXPECT_EQ(found.at(layer + "eh_proj.weight"), (Shape{8, 16}));
      EXPECT_EQ(found.at(layer + "shared_head.norm.weight"), (Shape{8}));
      EXPECT_EQ(found.at(layer + "mlp.experts.3.down_proj.weight"), (Shape{8, 6}));
      EXPECT_EQ(found.at(layer + "mlp.gate.e_score_correction_bias"), (Shape{4}));
    }
    ASSERT_EQ(made.layout.copies.size(), 4u);
    auto const& tensors = made.layout.tensors;
    for (std::size_t i = 0; i < 4; ++i) {
      auto const& [tensor, of] = made.layout.copies[i];
      auto const layer = i < 2 ? "model.layers.2." : "model.layers.3.";
      EXPECT_EQ(tensor.name, std::string(layer) + (i % 2 == 0 ? "embed_tokens" : "shared_head.head") + ".weight");
      EXPECT_EQ(tensors[of].name, i % 2 == 0 || tied ? "model.embed_tokens.weight" : "lm_head.weight");
      EXPECT_EQ(tensor.shape, tensors[of].shape);
    }
  }
  EXPECT_TRUE(make(glm4_moe()).layout.copies.empty());
}

TEST(HuggingFaceLayout, DeepSeekV3NamesTheParametersOfLatentAttention) {
  auto c = glm4_moe();
  auto& m = c.model;
  m.qkv_bias = false, m.kv_heads = 2, m.head_size = 5;
  m.mla = {.kv_lora_rank = 6, .q_lora_rank = 7, .qk_nope_head_dim = 3, .qk_rope_head_dim = 2, .v_head_dim = 4};
  std::vector<ParamSpec> specs;
  for (auto const& [name, rows, cols] :
       std::vector<std::tuple<char const*, std::int64_t, std::int64_t>>{{"q_down.weight", 7, 8},
                                                                        {"kv_down.weight", 8, 8},
                                                                        {"q_latent_norm.weight", 1, 7},
                                                                        {"kv_latent_norm.weight", 1, 6},
                                                                        {"q_up.weight", 10, 7},
                                                                        {"q.weight", 10, 8},
                                                                        {"kv_up.weight", 14, 6},
                                                                        {"out.weight", 8, 8}}) {
    ParamSpec spec;
    spec.name = std::string("layers.1.attn.") + name;
    spec.rows = rows, spec.cols = cols, spec.layer = 1;
    specs.push_back(spec);
  }
  auto const found = shapes(hugging_face_layout(config::family_of(m), m, ParamTable(specs)));
  auto const shape = [&](char const* name) {
    return found.at(std::string("model.layers.1.self_attn.") + name + ".weight");
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape("q_a_proj"), (Shape{7, 8}));
  EXPECT_EQ(shape("q_a_layernorm"), (Shape{7}));
  EXPECT_EQ(shape("q_b_proj"), (Shape{10, 7}));
  EXPECT_EQ(shape("q_proj"), (Shape{10, 8}));
  EXPECT_EQ(shape("kv_a_proj_with_mqa"), (Shape{8, 8}));
  EXPECT_EQ(shape("kv_a_layernorm"), (Shape{6}));
  EXPECT_EQ(shape("kv_b_proj"), (Shape{14, 6}));
  EXPECT_EQ(shape("o_proj"), (Shape{8, 8}));
}

TEST(HuggingFaceLayout, GptOssHasOneTensorForAllExperts) {
  auto const made = make(gpt_oss());
  EXPECT_EQ(made.layout.family, config::ModelFamily::gpt_oss);
  auto const found = shapes(made.layout);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(found.size(), 3u + 2 * (2 + 8 + 1 + 6));
  EXPECT_EQ(found.at("model.layers.1.self_attn.sinks"), (Shape{2}));
  EXPECT_EQ(found.at("model.layers.1.self_attn.o_proj.bias"), (Shape{8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.router.weight"), (Shape{3, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.router.bias"), (Shape{3}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.gate_up_proj"), (Shape{3, 8, 12}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.gate_up_proj_bias"), (Shape{3, 12}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.down_proj"), (Shape{3, 6, 8}));
  EXPECT_EQ(found.at("model.layers.1.mlp.experts.down_proj_bias"), (Shape{3, 8}));
}

/// Runs of every parameter of gpt-oss, in pieces of rows and columns, against transformers' definition.
TEST(HuggingFaceLayout, GptOssInterleavesGateAndUp) {
  auto const [table, layout] = make(gpt_oss());
  constexpr std::int64_t hidden = 8, ffn = 6;
  auto const element = [&](std::string const& name, std::int64_t row, std::int64_t col) {
    auto const expert = row / hidden, h = row % hidden;
    bool const up = name.find(".up.") != std::string::npos, down = name.find(".down.") != std::string::npos;
    if (name.ends_with(".bias")) return down ? row * hidden + col : row * 2 * ffn + 2 * col + (up ? 1 : 0);
    return down ? (expert * ffn + col) * hidden + h : (expert * hidden + h) * 2 * ffn + 2 * col + (up ? 1 : 0);
  };
  std::map<std::size_t, std::set<std::int64_t>> all;
  for (std::size_t i = 0; i < table.specs().size(); ++i) {
    auto const& spec = table.specs()[i];
    auto const& tensors = layout.tensors;  // Clang before 16 captures no structured binding
    if (spec.name.find(".experts.") == std::string::npos) continue;
    for (auto const& rows : {Range{0, spec.rows}, Range{1, spec.rows - 1}, Range{2, 2}})
      for (auto const& cols : {Range{0, spec.cols}, Range{1, 4}}) {
        std::map<std::int64_t, std::int64_t> found, expected;  // place in the rectangle -> element of the tensor
        for_tensors(layout.places[i], rows, [&](HuggingFacePlace const& place, Range some, std::int64_t done) {
          for_element_runs(place, tensors[place.tensor].shape.back(), some, cols, [&](ElementRun const& run) {
            for (std::int64_t k = 0; k < run.count; ++k)
              EXPECT_TRUE(
                  found.emplace(done * cols.size() + run.place + k * run.stride, run.first + k * run.step).second);
          });
        });
        for (auto row = rows.begin; row < rows.end; ++row)
          for (auto col = cols.begin; col < cols.end; ++col)
            expected[(row - rows.begin) * cols.size() + col - cols.begin] = element(spec.name, row, col);
        EXPECT_EQ(found, expected) << spec.name;
        if (rows.size() != spec.rows || cols.size() != spec.cols) continue;
        for (auto const& [place, at] : found) EXPECT_TRUE(all[layout.places[i].tensor].insert(at).second);
      }
  }
  EXPECT_EQ(all.size(), 8u);
  for (auto const& [tensor, elements] : all) {
    std::int64_t size = 1;
    for (auto n : layout.tensors[tensor].shape) size *= n;
    EXPECT_EQ(static_cast<std::int64_t>(elements.size()), size);
  }
}

/// Element (row, col) of the experts' matrices, as the definition of the table says.
TEST(HuggingFaceLayout, RowsOfExpertsAreTheirTensors) {
  auto const [table, layout] = make(experts(false));
  auto const& tensors = layout.tensors;  // Clang before 16 captures no structured binding
  for (auto const* name : {"gate", "up", "down"}) {
    auto const& spec = table.find(std::string("layers.1.moe.experts.") + name + ".weight");
    auto const& place = layout.places[static_cast<std::size_t>(&spec - table.specs().data())];
    auto const weight = std::string(name) == "gate" ? "w1" : std::string(name) == "up" ? "w3" : "w2";
    constexpr std::int64_t hidden = 8;
    for (auto const& rows : {Range{0, 24}, Range{3, 5}, Range{6, 17}, Range{8, 16}, Range{5, 5}}) {
      std::vector<std::int64_t> met;
      for_tensors(place, rows, [&](HuggingFacePlace const& part, Range some, std::int64_t done) {
        EXPECT_EQ(part.block, 0);
        EXPECT_EQ(done, static_cast<std::int64_t>(met.size()));
        for (auto row = some.begin; row < some.end; ++row) {
          auto const global = rows.begin + static_cast<std::int64_t>(met.size());
          met.push_back(global);
          EXPECT_EQ(row, global % hidden);
          auto const expert = std::to_string(global / hidden);
          EXPECT_EQ(tensors[part.tensor].name,
                    "model.layers.1.block_sparse_moe.experts." + expert + "." + weight + ".weight");
        }
        EXPECT_EQ(part.transposed, weight != std::string("w2"));
      });
      EXPECT_EQ(static_cast<std::int64_t>(met.size()), rows.size());
    }
  }
}

/// Every element of every tensor belongs to one element of one parameter.
TEST(HuggingFaceLayout, CoversEveryTensorOnce) {
  for (auto const& c :
       {gpt2(true), gpt2(false), llama(false), llama(true), experts(false), experts(true), glm4_moe()}) {
    auto const [table, layout] = make(c);
    std::set<std::pair<std::size_t, std::int64_t>> seen;
    for (std::size_t i = 0; i < table.specs().size(); ++i) {
      auto const& spec = table.specs()[i];
      auto const& place = layout.places[i];
      for (std::int64_t row = 0; row < spec.rows; ++row) {
        auto const tensor = place.tensor + static_cast<std::size_t>(place.block > 0 ? row / place.block : 0);
        auto const& shape = layout.tensors[tensor].shape;
        auto const r = place.first + (place.block > 0 ? row % place.block : row);
        for (std::int64_t col = 0; col < spec.cols; ++col) {
          auto const at = shape.size() == 1  ? place.first + col
                          : place.transposed ? col * shape[1] + r
                                             : r * shape[1] + col;
          EXPECT_TRUE(at < shape[0] * (shape.size() == 2 ? shape[1] : 1)) << spec.name;
          EXPECT_TRUE(seen.emplace(tensor, at).second) << spec.name;
        }
      }
    }
    std::size_t all = 0;
    for (auto const& t : layout.tensors)
      all += static_cast<std::size_t>(t.shape[0] * (t.shape.size() == 2 ? t.shape[1] : 1));
    EXPECT_EQ(seen.size(), all);
  }
}

/// Runs of a rectangle against the definition, element by element.
TEST(HuggingFaceLayout, RunsAreTheRectangle) {
  constexpr std::int64_t rows = 7, cols = 5, first = 3;
  for (bool transposed : {false, true}) {
    HuggingFacePlace const place{0, transposed, first};
    std::int64_t const tensor_cols = transposed ? 12 : cols;
    for (auto const& [r, c] : std::vector<std::pair<Range, Range>>{
             {{0, rows}, {0, cols}}, {{2, 5}, {0, cols}}, {{0, rows}, {1, 4}}, {{3, 4}, {2, 3}}, {{4, 4}, {0, cols}}}) {
      std::map<std::int64_t, std::int64_t> found, expected;  // place in the rectangle -> element of the tensor
      for_element_runs(place, tensor_cols, r, c, [&](ElementRun const& run) {
        for (std::int64_t i = 0; i < run.count; ++i)
          EXPECT_TRUE(found.emplace(run.place + i * run.stride, run.first + i).second);
      });
      for (auto row = r.begin; row < r.end; ++row) {
        for (auto col = c.begin; col < c.end; ++col)
          expected[(row - r.begin) * c.size() + col - c.begin] =
              transposed ? col * tensor_cols + first + row : (first + row) * tensor_cols + col;
      }
      EXPECT_EQ(found, expected) << transposed << " " << r.begin << " " << c.begin;
    }
  }
}

TEST(HuggingFaceLayout, KnowsTheConstantsOfOlderFiles) {
  EXPECT_TRUE(is_hugging_face_buffer("h.3.attn.bias"));
  EXPECT_TRUE(is_hugging_face_buffer("transformer.h.3.attn.masked_bias"));
  EXPECT_TRUE(is_hugging_face_buffer("model.layers.1.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(is_hugging_face_buffer("transformer.h.3.attn.c_attn.bias"));
  EXPECT_FALSE(is_hugging_face_buffer("model.layers.1.self_attn.v_proj.bias"));
}

}  // namespace
}  // namespace p3d::layout
