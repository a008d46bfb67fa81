// SPDX-License-Identifier: Apache-2.0
#include "paper_models.hpp"

#include <p3d/layout/params.hpp>
#include <p3d/plan/model_cost.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace {
using namespace p3d;

TEST(ModelCost, ParametersOfThePapersModels) {
  for (auto const& row : test::paper_rows()) {
    auto const c = row.config();
    auto const l = row.layers, h = row.hidden, v = c.model.vocab_size, s = c.model.seq_len;
    // P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)), multiplied out; it leaves out the final norm's 2 h.
    std::int64_t const formula = 12 * l * h * h + 13 * l * h + (v + s) * h;
    auto const exact = layout::make_param_table(c).num_parameters();
    EXPECT_EQ(exact, formula + 2 * h) << row.billions;
    EXPECT_NEAR(static_cast<double>(exact) / 1e9, row.billions, 0.0501) << "as printed";
  }
}

// One more forward pass of the layers, not of the head: what the paper's table counts, as it recomputed activations.
double with_recomputation(config::Config const& c) {
  auto const l = static_cast<double>(c.model.layers), s = static_cast<double>(c.model.seq_len);
  return plan::flops_per_token(c) + 2.0 * l * static_cast<double>(plan::weights_of_layer(c, 0)) +
         4.0 * l * static_cast<double>(c.model.hidden) * s;
}

TEST(ModelCost, FlopsAreThePapersFormula) {
  for (auto const& row : test::paper_rows()) {
    auto const c = row.config();
    double const l = static_cast<double>(row.layers), h = static_cast<double>(row.hidden);
    double const b = static_cast<double>(row.global), v = 51200.0, s = 2048.0;
    auto const flops = plan::flops_per_token(c);
    double const plain = 72.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    double const recompute = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    EXPECT_NEAR(flops * b * s / plain, 1.0, 1e-14) << row.billions;
    EXPECT_NEAR(plan::model_flops_per_step(c) / plain, 1.0, 1e-14) << row.billions;
    EXPECT_NEAR(with_recomputation(c) * b * s / recompute, 1.0, 1e-14) << row.billions;
    EXPECT_NEAR(with_recomputation(c) * b * s / (row.gpus * row.tflops * 1e12), row.seconds, 0.00501) << row.billions;
  }
}

// Full recomputation is that forward without the last matrix of each layer, whose result nobody needs again.
TEST(ModelCost, RecomputationIsAForwardWithoutItsLastMatrix) {
  auto c = test::paper_rows()[3].config();
  double const l = 40, h = 6144, s = 2048;
  layout::StageMap const stages({40}, 1);
  auto const extra = [&] {
    return plan::recompute_flops_per_token(c, layout::stage_recompute(c.memory, stages, 0), 0, plan::Keys::all);
  };
  EXPECT_EQ(extra(), 0);
  c.memory.recompute = config::Recompute::full;
  EXPECT_DOUBLE_EQ(extra(), with_recomputation(c) - plan::flops_per_token(c) - l * 8 * h * h);
  c.memory.recompute_group = 8;  // inside a group the last matrix makes the next layer's input
  EXPECT_DOUBLE_EQ(extra(), with_recomputation(c) - plan::flops_per_token(c) - l / 8 * 8 * h * h);
  c.memory.recompute_group = 1;
  c.memory.recompute_communication = false;
  EXPECT_DOUBLE_EQ(extra(), l * (2 * (3 * h * h + 4 * h * h) + 4 * h * s));
  c.memory.recompute_every = 4;
  EXPECT_DOUBLE_EQ(extra(), l / 4 * (2 * (3 * h * h + 4 * h * h) + 4 * h * s));
  c.memory = {};
  c.memory.recompute = config::Recompute::list;
  c.memory.recompute_ops = {.norm = true, .activation = true, .rotary = true};
  EXPECT_EQ(extra(), 0) << "no product among them";
  c.memory.recompute_ops.attention = true;
  EXPECT_DOUBLE_EQ(extra(), l * 4 * h * s);
}

// Walks over the products of a Llama model with grouped-query attention, one by one.
TEST(ModelCost, GroupedQueriesAndSwigluByTheirProducts) {
  config::Config c;
  c.model.vocab_size = 101;
  c.model.hidden = 48;
  c.model.layers = 3;
  c.model.heads = 6;
  c.model.kv_heads = 2;
  c.model.ffn = 80;
  c.model.seq_len = 10;
  c.model.activation = config::Activation::swiglu;
  std::int64_t forward = 0, attention_all = 0;  // of one sequence
  auto gemm = [](std::int64_t m, std::int64_t k, std::int64_t n) { return 2 * m * k * n; };
  std::int64_t const tokens = 10, head = 8;
  for (int layer = 0; layer < 3; ++layer) {
    forward += gemm(tokens, 48, 6 * head) + 2 * gemm(tokens, 48, 2 * head) + gemm(tokens, 6 * head, 48);
    forward += 2 * gemm(tokens, 48, 80) + gemm(tokens, 80, 48);
    for (int h = 0; h < 6; ++h) {
      for (std::int64_t i = 0; i < tokens; ++i) {
        attention_all += gemm(1, head, tokens) + gemm(1, tokens, head);
      }
    }
  }
  std::int64_t const logits = gemm(tokens, 48, 101);
  auto const f = plan::flops_per_token(c);
  EXPECT_DOUBLE_EQ(f * 10.0, 3.0 * static_cast<double>(forward + logits + attention_all));
}

TEST(ModelCost, MatmulWeightsAreTheSplitMatricesOfTheTable) {
  for (int const kind : {0, 1, 2, 3}) {
    bool const llama = kind > 0;
    auto c = test::paper_rows()[0].config();
    if (kind > 1) {
      c.model.position = config::Position::rope;
      c.model.bias = c.model.qkv_bias = false;
      c.model.mla = {.kv_lora_rank = 512,
                     .q_lora_rank = kind == 2 ? 1536 : 0,
                     .qk_nope_head_dim = 128,
                     .qk_rope_head_dim = 64,
                     .v_head_dim = 100};
      c.model.head_size = 192;
    } else if (llama) {
      c.model.kv_heads = 8;
      c.model.activation = config::Activation::swiglu;
      c.model.head_size = c.model.hidden / c.model.heads + 6;
    }
    c.model.tied_embeddings = !llama;
    auto const table = layout::make_param_table(c);
    std::int64_t sum = 0;
    for (auto const& s : table.specs()) {
      bool const read_by_lookup = s.name == "embed.position.weight" || (s.name == "embed.token.weight" && llama);
      if (s.decay && !read_by_lookup) sum += s.size();
    }
    EXPECT_EQ(plan::matmul_weights(c), sum);
  }
}

config::Config mixtral() {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 32000, m.hidden = 4096, m.layers = 32, m.heads = 32, m.kv_heads = 8, m.ffn = 14336, m.seq_len = 4096;
  m.norm = config::Norm::rmsnorm, m.position = config::Position::rope, m.activation = config::Activation::swiglu;
  m.bias = m.tied_embeddings = false;
  m.moe.experts = 8, m.moe.top_k = 2, m.moe.ffn = 14336;
  return c;
}

TEST(ModelCost, ActiveParametersOfMixtral) {
  auto const c = mixtral();
  auto const table = layout::make_param_table(c);
  EXPECT_NEAR(static_cast<double>(table.num_parameters()) / 1e9, 46.7, 0.05) << "arXiv 2401.04088: 47B, and";
  EXPECT_NEAR(static_cast<double>(plan::active_parameters(c, table)) / 1e9, 12.9, 0.05) << "13B of them active";
  auto dense = c;
  dense.model.moe.experts = 0;
  EXPECT_EQ(plan::active_parameters(dense, layout::make_param_table(dense)),
            layout::make_param_table(dense).num_parameters());
}

// The model card (arXiv 2508.10925, table 1) counts the output layer and not the embedding: 3.61 B and 5.13 B.
TEST(ModelCost, ActiveParametersOfGptOss) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 201088, m.hidden = 2880, m.heads = 64, m.kv_heads = 8, m.head_size = 64, m.ffn = m.moe.ffn = 2880;
  m.norm = config::Norm::rmsnorm, m.position = config::Position::rope;
  m.activation = config::Activation::swiglu_clamped;
  m.bias = m.qkv_bias = m.moe.bias = m.attention_sinks = true, m.tied_embeddings = false;
  m.moe.top_k = 4;
  auto const active = [&](int layers, int experts) {
    m.layers = layers, m.moe.experts = experts;
    return plan::active_parameters(c, layout::make_param_table(c)) - m.vocab_size * m.hidden;
  };
  EXPECT_EQ(active(24, 32), 3'608'307'264);
  EXPECT_EQ(active(36, 128), 5'132'849'472);
}

// Every expert for every token is a wide MLP, and the router: no formula of the program's, but its dense one.
TEST(ModelCost, AllExpertsForEachTokenAreOneWideMlp) {
  auto moe = mixtral(), wide = mixtral();
  moe.model.moe.top_k = 8, moe.model.moe.shared_ffn = 1000, moe.model.moe.first_dense = 3;
  wide.model.moe.experts = 0;
  wide.model.ffn = 8 * 14336 + 1000;
  auto const h = moe.model.hidden, router = 8 * h;
  for (int l = 0; l < 32; ++l) {
    auto const dense = h * (2 * h + 2 * h / 4) + 3 * h * 14336;
    EXPECT_EQ(plan::weights_of_layer(moe, l), l < 3 ? dense : plan::weights_of_layer(wide, l) + router) << l;
  }
  layout::StageMap const stages({16, 16}, 2);
  auto const extra = [&](config::Config c, int stage) {
    c.memory.recompute = config::Recompute::full;
    return plan::recompute_flops_per_token(c, layout::stage_recompute(c.memory, stages, stage), 16 * stage,
                                           plan::Keys::all);
  };
  EXPECT_DOUBLE_EQ(extra(moe, 1), extra(wide, 1) + 16.0 * 2.0 * static_cast<double>(router));
}

// A score has the width of a query, a weighted sum that of a value.
TEST(ModelCost, FlopsOfLatentAttentionByItsProducts) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 101, m.hidden = 48, m.layers = 3, m.heads = 6, m.kv_heads = 6, m.ffn = 80, m.seq_len = 10;
  m.position = config::Position::rope, m.bias = m.qkv_bias = false;
  m.mla = {.kv_lora_rank = 11, .q_lora_rank = 7, .qk_nope_head_dim = 5, .qk_rope_head_dim = 4, .v_head_dim = 3};
  m.head_size = 9;
  auto const layer = [&](double queries) {
    double const down = 48.0 * (11 + 4), up = 11.0 * 6 * (5 + 3), out = 6.0 * 3 * 48;
    return 2 * (queries + down + up + out) + 2.0 * 6 * (9 + 3) * 10 + 2.0 * 2 * 48 * 80;
  };
  EXPECT_DOUBLE_EQ(plan::flops_per_token(c), 3 * (2.0 * 48 * 101 + 3 * layer(48.0 * 7 + 7.0 * 6 * 9)));
  m.mla.q_lora_rank = 0;
  EXPECT_DOUBLE_EQ(plan::flops_per_token(c), 3 * (2.0 * 48 * 101 + 3 * layer(48.0 * 6 * 9)));
}

// A block has a layer with the next number, the matrix of its two inputs, and the head once more.
TEST(ModelCost, FlopsOfMultiTokenPrediction) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 101, m.hidden = 48, m.layers = 2, m.heads = 6, m.kv_heads = 6, m.ffn = 80, m.seq_len = 10;
  m.activation = config::Activation::swiglu;
  m.moe.experts = 16, m.moe.top_k = 3, m.moe.ffn = 20, m.moe.every = 2;  // layers 1 and 3
  auto const without = plan::flops_per_token(c);
  auto const idle =
      layout::make_param_table(c).num_parameters() - plan::active_parameters(c, layout::make_param_table(c));
  m.mtp.depth = 2;
  double const attention = 2.0 * 4 * 48 * 48 + 4.0 * 48 * 10, beside = 2.0 * (2 * 48 * 48 + 48 * 101);
  double const dense = 2.0 * 3 * 48 * 80, experts = 2.0 * 48 * 16 + 3 * 2.0 * 3 * 48 * 20;
  EXPECT_DOUBLE_EQ(plan::flops_per_token(c) - without, 3 * (2 * (attention + beside) + dense + experts));
  auto const table = layout::make_param_table(c);
  EXPECT_EQ(table.num_parameters() - plan::active_parameters(c, table), 2 * idle) << "of layers 1 and 3";
}

// Walks over what one token is multiplied with.
TEST(ModelCost, FlopsOfExpertsByTheirProducts) {
  config::Config c;
  auto& m = c.model;
  m.vocab_size = 101, m.hidden = 48, m.layers = 5, m.heads = 6, m.kv_heads = 2, m.ffn = 80, m.seq_len = 10;
  m.activation = config::Activation::swiglu;
  m.moe.experts = 16, m.moe.top_k = 3, m.moe.ffn = 20, m.moe.shared_ffn = 30, m.moe.shared_gate = true;
  m.moe.every = 2;  // layers 1 and 3
  double forward = 2.0 * 48 * 101;
  for (int layer = 0; layer < 5; ++layer) {
    forward += 2.0 * (48 * 48 + 2 * 48 * 16 + 48 * 48) + 4.0 * 48 * 10;
    if (layer % 2 == 0) {
      forward += 2.0 * 3 * 48 * 80;
      continue;
    }
    forward += 2.0 * 48 * 16 + 2.0 * 48;  // the router, the gate of the shared experts
    for (int expert = 0; expert < 3; ++expert) forward += 2.0 * 3 * 48 * 20;
    forward += 2.0 * 3 * 48 * 30;
  }
  EXPECT_DOUBLE_EQ(plan::flops_per_token(c), 3.0 * forward);
}

TEST(StageParameters, SumToTheModelPlusTheSecondTiedCopy) {
  for (bool const tied : {false, true}) {
    auto c = test::paper_rows()[5].config();
    c.model.tied_embeddings = tied;
    c.model.vocab_size = 50257;  // padded over tp = 8
    auto const table = layout::make_param_table(c);
    layout::PerAxis const sizes = c.parallel;
    auto const stages = layout::make_stage_map(c);
    std::vector<std::int64_t> parameters, per_rank;
    for (int stage = 0; stage < stages.num_stages(); ++stage) {
      // Shards are padded to equal size, so the first rank of a tensor group stands for all.
      layout::StageParams const local(table, stages, stage, sizes,
                                      layout::PerAxis::only(layout::Axis::pp, stages.pipeline_rank(stage)));
      per_rank.push_back(local.flat_size());
      parameters.push_back(0);
      for (auto const& p : local.items()) parameters.back() += p.spec->size();
    }
    ASSERT_EQ(parameters.size(), 4u);
    std::int64_t const embedding = 50257 * c.model.hidden;
    EXPECT_EQ(std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0}),
              table.num_parameters() + (tied ? embedding : 0));
    // A middle stage: 15 layers; matrices, their inner biases are split over 8, norms and outer biases are replicas.
    std::int64_t const h = 10240;
    EXPECT_EQ(parameters[1], 15 * (12 * h * h + 13 * h));
    EXPECT_EQ(per_rank[1], 15 * ((12 * h * h + 7 * h) / 8 + 6 * h));
    EXPECT_EQ(per_rank[0] - per_rank[1], 6283 * h + 2048 * h);  // ceil(50257 / 8) rows, all positions
  }
}

}  // namespace
