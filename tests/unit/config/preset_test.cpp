// SPDX-License-Identifier: Apache-2.0
// Every preset is a valid model; the sizes of some that are widely known.

#include "support.hpp"

#include <cmath>

namespace p3d::config::test {
namespace {

Model model_preset(std::string const& name) { return good("", {"model.preset=" + name}).model; }

TEST(Preset, EachIsValidAndDividesOverItsUsualTp) {
  auto const names = preset_names();
  EXPECT_EQ(names.size(), 45u);
  for (auto const& name : names) {
    auto const m = model_preset(name);
    EXPECT_EQ(m.preset, name);
    bool const latent = name.starts_with("deepseek-v3") || name == "moonlight-16b-a3b", glm_moe = name == "glm4.5-air";
    bool const oss = name.starts_with("gpt-oss"), gpt = name.starts_with("gpt") && !oss;
    EXPECT_EQ(m.mla.on(), latent) << name;
    EXPECT_EQ(m.hidden % m.heads == 0, !glm_moe) << name;
    EXPECT_EQ(m.head_dim() == m.hidden / m.heads, name != "mistral-nemo-12b" && !name.starts_with("gemma") &&
                                                      name != "qwen3-0.6b" && name != "qwen3-30b-a3b" && !latent &&
                                                      !glm_moe && !oss)
        << name;
    EXPECT_EQ(m.qkv_bias, m.bias || name.starts_with("qwen2") || name.starts_with("glm4")) << name;
    EXPECT_EQ(m.norm_placement, name.starts_with("olmo2")                                ? NormPlacement::post
                                : name.starts_with("glm4-") || name.starts_with("gemma") ? NormPlacement::sandwich
                                                                                         : NormPlacement::pre);
    bool const apertus = name.starts_with("apertus"), phi4_mini = name == "phi4-mini";
    EXPECT_EQ(m.qk_norm, name.starts_with("qwen3") || name.starts_with("gemma3") || apertus ? QkNorm::head
                         : name.starts_with("olmo")                                         ? QkNorm::full
                                                                                            : QkNorm::none);
    EXPECT_EQ(m.activation == Activation::xielu, apertus) << name;
    EXPECT_EQ(m.rope_scaling == RopeScaling::longrope, phi4_mini) << name;
    EXPECT_EQ(m.position == Position::rope, !gpt) << name;
    EXPECT_EQ(m.moe.on(), name.starts_with("mixtral") || name.find("moe") != std::string::npos ||
                              name == "qwen3-30b-a3b" || latent || glm_moe || oss)
        << name;
    EXPECT_EQ(m.bias, gpt || oss) << name;
    EXPECT_EQ(m.attention_sinks, oss) << name;
    EXPECT_EQ(m.activation == Activation::swiglu_clamped && m.moe.bias, oss) << name;
    EXPECT_EQ(m.tied_embeddings, gpt || name == "llama-124m" || name == "qwen2.5-0.5b" || name == "smollm3-3b" ||
                                     name == "qwen3-0.6b" || name == "granite3.1-2b" || phi4_mini ||
                                     name.starts_with("gemma"))
        << name;
    EXPECT_EQ(m.attention_softcap > 0 && m.logits_softcap > 0, name.starts_with("gemma2")) << name;
    EXPECT_EQ(m.rope_layers.empty(), name != "smollm3-3b") << name;
    if (name != "qwen2.5-0.5b" && name != "gpt2-1558m" && !name.ends_with("-tiny") && name != "llama-124m" &&
        name != "gpt2-124m" && !name.starts_with("gemma3")) {
      good("", {"model.preset=" + name, name == "glm4-9b" || name == "phi4" ? "parallel.tp=2" : "parallel.tp=4",
                "parallel.sequence=true"});
    }
  }
}

/// Weights of the linears and embeddings, without biases, norms and positions: enough to know a model by its name.
double billions(Model const& m) {
  double const attention =
      double(m.hidden) * m.heads * m.head_dim() * 2 + double(m.hidden) * m.kv_heads * m.head_dim() * 2;
  double const widths = m.moe.on() ? double(m.moe.experts) * m.moe.ffn : double(m.ffn);
  double const ffn = double(m.hidden) * widths * (m.gated() ? 3 : 2);
  double const embedding = double(m.vocab_size) * m.hidden * (m.tied_embeddings ? 1 : 2);
  return (m.layers * (attention + ffn) + embedding) / 1e9;
}

TEST(Preset, TheNameTellsTheNumberOfParameters) {
  struct Row {
    char const* name;
    double billions;
  };
  for (auto const& row : {Row{"gpt2-124m", 0.124},     Row{"gpt2-350m", 0.354},    Row{"gpt2-774m", 0.774},
                          Row{"gpt2-1558m", 1.558},    Row{"gpt3-6.7b", 6.65},     Row{"gpt3-13b", 12.85},
                          Row{"gpt3-175b", 174.6},     Row{"llama-124m", 0.124},   Row{"llama2-7b", 6.738},
                          Row{"llama2-13b", 13.016},   Row{"llama2-70b", 68.977},  Row{"llama3-8b", 8.030},
                          Row{"llama3-70b", 70.554},   Row{"mixtral-8x7b", 46.70}, Row{"mistral-nemo-12b", 12.248},
                          Row{"qwen2.5-0.5b", 0.494},  Row{"qwen2.5-7b", 7.615},   Row{"smollm3-3b", 3.075},
                          Row{"qwen3-0.6b", 0.596},    Row{"qwen3-8b", 8.191},     Row{"qwen3-30b-a3b", 30.53},
                          Row{"olmoe-1b-7b", 6.919},   Row{"olmo2-1b", 1.485},     Row{"olmo2-7b", 7.299},
                          Row{"granite3.1-2b", 2.534}, Row{"glm4-9b", 9.400},      Row{"phi4", 14.66},
                          Row{"gemma3-270m", 0.268},   Row{"gemma3-1b", 1.0},      Row{"gemma2-2b", 2.614},
                          Row{"gemma2-9b", 9.241},     Row{"gpt-oss-20b", 20.91},  Row{"gpt-oss-120b", 116.8},
                          Row{"apertus-8b", 8.053},    Row{"apertus-70b", 70.60},  Row{"phi4-mini", 3.836}}) {
    EXPECT_NEAR(billions(model_preset(row.name)) / row.billions, 1.0, 0.01) << row.name;
  }
}

TEST(Preset, TheTinyOnesDivideByManyLayouts) {
  for (auto const* name : {"gpt2-tiny", "llama-tiny"}) {
    auto const m = model_preset(name);
    EXPECT_EQ(m.hidden, 96);
    EXPECT_EQ(m.layers, 8);
    EXPECT_EQ(m.heads, 12);
    EXPECT_EQ(m.seq_len, 64);
    EXPECT_EQ(m.vocab_size, 256);
    for (auto const* tp : {"1", "2", "3", "6"}) {
      for (auto const* pp : {"1", "3", "5", "7", "8"}) {
        good("",
             {std::string("model.preset=") + name, std::string("parallel.tp=") + tp, std::string("parallel.pp=") + pp});
      }
    }
  }
  EXPECT_EQ(model_preset("gpt2-tiny").ffn, 384);
  EXPECT_EQ(model_preset("gpt2-tiny").kv_heads, 12);
  EXPECT_EQ(model_preset("llama-tiny").ffn, 288);
  EXPECT_EQ(model_preset("llama-tiny").kv_heads, 6);
}

TEST(Preset, ModelsWithExpertsDivideThemOverManyRanks) {
  for (auto const* name : {"mixtral-tiny", "qwen-moe-tiny", "deepseek-moe-tiny", "deepseek-v3-tiny"}) {
    std::string const preset = std::string("model.preset=") + name;
    for (auto const* ep : {"1", "2", "4", "8"}) good("", {preset, std::string("parallel.ep=") + ep}, 8);
    good("", {preset, "parallel.tp=3", "parallel.etp=3", "parallel.sequence=true"}, 3);
    good("", {preset, "parallel.tp=2", "parallel.cp=2", "parallel.ep=4", "parallel.etp=2", "parallel.sequence=true"},
         8);
  }
  auto const qwen = model_preset("qwen-moe-tiny").moe, deepseek = model_preset("deepseek-moe-tiny").moe;
  EXPECT_TRUE(qwen.shared_gate && !qwen.normalize);
  EXPECT_EQ(deepseek.score, RouterScore::sigmoid);
  EXPECT_TRUE(deepseek.grouped() && deepseek.bias_update_rate > 0 && deepseek.shared_ffn > 0);
  EXPECT_EQ(model_preset("deepseek-moe-tiny").moe_layers(), 7);
  EXPECT_EQ(model_preset("mixtral-8x7b").moe.ffn, 14336);
  EXPECT_EQ(good("", {"model.preset=llama-tiny", "model.moe.experts=4"}).model.moe.ffn, 288) << "the preset's ffn";
}

TEST(Preset, DeepSeekV3ScalesScoresBesideYarn) {
  EXPECT_DOUBLE_EQ(model_preset("deepseek-v3").attention_scale() * std::sqrt(192.0),
                   std::pow(0.1 * std::log(40.0) + 1.0, 2));
}

TEST(Preset, Llama3) {
  auto const m = model_preset("llama3-8b");
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_EQ(m.rope_theta, 500000.0);
  EXPECT_EQ(m.seq_len, 8192);
  EXPECT_EQ(m.norm, Norm::rmsnorm);
}

TEST(Preset, SizesThatFollowStillFollow) {
  auto const m = good("", {"model.preset=gpt2-124m", "model.heads=16", "model.hidden=1024"}).model;
  EXPECT_EQ(m.kv_heads, 16);
  EXPECT_EQ(m.ffn, 4096);
  EXPECT_EQ(good("", {"model.preset=llama3-8b", "model.hidden=2048"}).model.ffn, 14336);  // the preset says so
}

}  // namespace
}  // namespace p3d::config::test
