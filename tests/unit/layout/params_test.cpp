// SPDX-License-Identifier: Apache-2.0
#include "tiny_models.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/shards.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace {
using namespace p3d;
using namespace p3d::layout;

/// Coordinates of a rank, 0 along the other axes.
PerAxis at(int tp, int pp) {
  auto here = PerAxis::only(Axis::pp, pp);
  here.tp = tp;
  return here;
}

config::Config gpt2_124m() {
  config::Config c;
  c.model.vocab_size = 50257;
  c.model.hidden = 768;
  c.model.layers = 12;
  c.model.heads = c.model.kv_heads = 12;
  c.model.ffn = 3072;
  c.model.seq_len = 1024;
  return c;
}

config::Config llama2_7b() {
  config::Config c;
  c.model.vocab_size = 32000;
  c.model.hidden = 4096;
  c.model.layers = 32;
  c.model.heads = c.model.kv_heads = 32;
  c.model.ffn = 11008;
  c.model.seq_len = 4096;
  c.model.norm = config::Norm::rmsnorm;
  c.model.position = config::Position::rope;
  c.model.activation = config::Activation::swiglu;
  c.model.bias = false;
  c.model.tied_embeddings = false;
  return c;
}

TEST(ParamTable, PublishedModelSizes) {
  EXPECT_EQ(make_param_table(gpt2_124m()).num_parameters(), 124'439'808);
  EXPECT_EQ(make_param_table(llama2_7b()).num_parameters(), 6'738'415'616);
  // Llama 2 70B: grouped-query attention with 8 key-value heads.
  auto c = llama2_7b();
  c.model.hidden = 8192;
  c.model.layers = 80;
  c.model.heads = 64;
  c.model.kv_heads = 8;
  c.model.ffn = 28672;
  EXPECT_EQ(make_param_table(c).num_parameters(), 68'976'648'192);
}

/// The numbers that the models' pages give, or that their files hold.
TEST(ParamTable, PublishedModelsHaveTheirNumberOfParameters) {
  struct Row {
    char const* preset;
    std::int64_t parameters;
  };
  for (auto const& row :
       {Row{"llama3-8b", 8'030'261'248}, Row{"mixtral-8x7b", 46'702'792'704}, Row{"mistral-nemo-12b", 12'247'782'400},
        Row{"qwen2.5-0.5b", 494'032'768}, Row{"qwen2.5-7b", 7'615'616'512}, Row{"smollm3-3b", 3'075'098'624},
        Row{"qwen3-0.6b", 596'049'920}, Row{"qwen3-8b", 8'190'735'360}, Row{"qwen3-30b-a3b", 30'532'122'624},
        Row{"olmoe-1b-7b", 6'919'161'856}, Row{"olmo2-1b", 1'484'916'736}, Row{"olmo2-7b", 7'298'617'344},
        Row{"granite3.1-2b", 2'533'531'648}, Row{"glm4-9b", 9'400'279'040}, Row{"phi4", 14'659'507'200},
        Row{"gemma3-270m", 268'098'176}, Row{"gemma3-1b", 999'885'952}, Row{"gemma2-2b", 2'614'341'888},
        Row{"gemma2-9b", 9'241'705'984}, Row{"apertus-8b", 8'053'338'176}, Row{"apertus-70b", 70'599'864'480},
        Row{"phi4-mini", 3'836'021'760},
        // Without blocks of multi-token prediction and biases of the choice (14,848 in DeepSeek-V3's 671,026,419,200).
        Row{"glm4.5-air", 106'852'245'504}, Row{"deepseek-v3", 671'026'404'352},
        Row{"moonlight-16b-a3b", 15'960'108'544}, Row{"gpt-oss-20b", 20'914'757'184},
        Row{"gpt-oss-120b", 116'829'156'672}}) {
    auto const input =
        config::parse_text("", "t.toml", "/", {"data.format=synthetic", std::string("model.preset=") + row.preset}, 1);
    ASSERT_TRUE(input.config) << row.preset;
    EXPECT_EQ(make_param_table(*input.config).num_parameters(), row.parameters) << row.preset;
  }
}

// DeepSeek-V3's page gives 11.5 billion parameters of its block of multi-token prediction, without embedding and head.
TEST(ParamTable, ABlockOfMultiTokenPrediction) {
  auto const of = [](char const* depth) {
    auto const input =
        config::parse_text("", "t.toml", "/", {"data.format=synthetic", "model.preset=deepseek-v3", depth}, 1);
    return make_param_table(input.config.value()).num_parameters();
  };
  constexpr std::int64_t attention = 7168 * (1536 + 512 + 64) + 1536 + 512 + 128 * 192 * 1536 + 128 * 256 * 512 +
                                     128 * 128 * 7168,
                         experts = 257 * std::int64_t{3 * 2048 * 7168} + 256 * 7168, norms = 5 * 7168,
                         joined = std::int64_t{2 * 7168} * 7168;
  EXPECT_EQ(of("model.mtp.depth=1") - of("model.mtp.depth=0"), attention + experts + norms + joined);
  EXPECT_NEAR(static_cast<double>(attention + experts + norms + joined), 11.5e9, 0.15e9);

  auto c = test::tiny_llama();
  c.model.layers = 2, c.model.tied_embeddings = false;
  auto const plain = make_param_table(c);
  c.model.mtp.depth = 2;
  auto const table = make_param_table(c);
  EXPECT_EQ(table.find("head.weight").layer, 4) << "behind the blocks";
  EXPECT_EQ(table.find("layers.3.mtp.eh_proj.weight").cols, 2 * c.model.hidden);
  EXPECT_TRUE(table.find("layers.3.mtp.eh_proj.weight").splits.empty());
  EXPECT_TRUE(table.find("embed.token.weight").tied) << "the last stage reads it too";
  EXPECT_FALSE(plain.find("embed.token.weight").tied);
  StageMap const stages({1, 1}, 2);
  for (auto const& spec : table.specs()) {
    bool const block = spec.name.starts_with("layers.2.") || spec.name.starts_with("layers.3.");
    if (!block) {
      EXPECT_EQ(spec.std, plain.find(spec.name).std) << spec.name;
    }
    if (!block) continue;
    EXPECT_TRUE(lives_on(spec, stages, 1)) << spec.name;
    EXPECT_FALSE(lives_on(spec, stages, 0)) << spec.name;
  }
  c.parallel.tp = 2, c.parallel.sequence = true;
  EXPECT_TRUE(make_param_table(c).find("layers.2.mtp.eh_proj.weight").gradient_axes().has(Axis::tp));
}

TEST(ParamTable, NamesInGlobalOrder) {
  auto names = [](config::Config c) {
    c.model.layers = 1;
    std::vector<std::string> out;
    auto const table = make_param_table(c);
    for (auto const& s : table.specs()) out.push_back(s.name);
    return out;
  };
  EXPECT_EQ(
      names(test::tiny_gpt()),
      (std::vector<std::string>{
          "embed.token.weight",       "embed.position.weight",  "layers.0.norm1.weight",    "layers.0.norm1.bias",
          "layers.0.attn.q.weight",   "layers.0.attn.k.weight", "layers.0.attn.v.weight",   "layers.0.attn.q.bias",
          "layers.0.attn.k.bias",     "layers.0.attn.v.bias",   "layers.0.attn.out.weight", "layers.0.attn.out.bias",
          "layers.0.norm2.weight",    "layers.0.norm2.bias",    "layers.0.mlp.up.weight",   "layers.0.mlp.up.bias",
          "layers.0.mlp.down.weight", "layers.0.mlp.down.bias", "final_norm.weight",        "final_norm.bias"}));
  EXPECT_EQ(names(test::tiny_llama()),
            (std::vector<std::string>{"embed.token.weight", "layers.0.norm1.weight", "layers.0.attn.q.weight",
                                      "layers.0.attn.k.weight", "layers.0.attn.v.weight", "layers.0.attn.out.weight",
                                      "layers.0.norm2.weight", "layers.0.mlp.gate.weight", "layers.0.mlp.up.weight",
                                      "layers.0.mlp.down.weight", "final_norm.weight", "head.weight"}));
}

TEST(ParamTable, NormsStandInFrontBehindOrAtBothPlaces) {
  auto const norms = [](config::NormPlacement placement) {
    std::vector<std::string> out;
    auto const table = make_param_table(test::tiny_norms(placement));
    for (auto const row : table.rows_of_layer(1))
      if (table.specs()[row].name.find("norm") != std::string::npos) out.push_back(table.specs()[row].name.substr(9));
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(norms(config::NormPlacement::pre), (Names{"norm1.weight", "norm2.weight"}));
  EXPECT_EQ(norms(config::NormPlacement::post), (Names{"post_norm1.weight", "post_norm2.weight"}));
  EXPECT_EQ(norms(config::NormPlacement::sandwich),
            (Names{"norm1.weight", "post_norm1.weight", "norm2.weight", "post_norm2.weight"}));
}

TEST(ParamTable, NormsThatAddOneBeginAtZero) {
  auto c = test::tiny_qk_norm(config::QkNorm::head);
  c.model.norm_offset = 1;
  auto const table = make_param_table(c);
  for (auto const& s : table.specs())
    if (s.name.find("norm") != std::string::npos) {
      EXPECT_EQ(s.init, Init::zeros) << s.name;
    }
}

TEST(ParamTable, NormsOfQueriesAndKeys) {
  auto const of = [](config::QkNorm norm, char const* name) {
    auto const c = test::tiny_qk_norm(norm, {.tp = 2});
    auto const spec = make_param_table(c).find(name);
    EXPECT_EQ(spec.init, Init::ones);
    EXPECT_FALSE(spec.decay);
    return spec;
  };
  auto const head = of(config::QkNorm::head, "layers.1.attn.q_norm.weight");
  EXPECT_EQ(head.cols, 2);
  EXPECT_TRUE(head.splits.empty() && head.gradient_axes().has(Axis::tp)) << "each rank of tp has other heads";
  EXPECT_TRUE(head.repeated_axes().empty());
  auto const full = of(config::QkNorm::full, "layers.1.attn.k_norm.weight");
  EXPECT_EQ(full.cols, 4);
  EXPECT_EQ(full.splits, (std::vector<Split>{{1, Axis::tp}}));
  EXPECT_FALSE(full.gradient_axes().has(Axis::tp));
}

TEST(ParamTable, SinksAreDividedByHeads) {
  auto c = test::tiny_llama({.tp = 2});
  EXPECT_EQ(make_param_table(c).rows_of_layer(1).size(), 9u);
  c.model.attention_sinks = true, c.parallel.sequence = true;
  auto const table = make_param_table(c);
  EXPECT_EQ(table.rows_of_layer(1).size(), 10u);
  auto const& spec = table.find("layers.1.attn.sinks");
  EXPECT_EQ(spec.rows, 1);
  EXPECT_EQ(spec.cols, 6);
  EXPECT_EQ(spec.splits, (std::vector<Split>{{1, Axis::tp}}));
  EXPECT_EQ(spec.gradient_axes(), token_axes);
  EXPECT_EQ(spec.init, Init::normal);
  EXPECT_EQ(spec.std, 0.02);
  EXPECT_FALSE(spec.decay);
}

TEST(ParamTable, SlopesAreTheSameOnAllRanksAndSeeSomeColumns) {
  for (bool const sequence : {false, true}) {
    auto c = test::tiny_llama({.tp = 2});
    auto const gated = make_param_table(c).num_parameters();
    c.model.activation = config::Activation::xielu, c.parallel.sequence = sequence;
    auto const table = make_param_table(c);
    EXPECT_EQ(table.num_parameters(), gated + 3 * (2 - 12 * 18)) << "two numbers in place of the matrix of gates";
    for (char const* name : {"alpha_p", "alpha_n"}) {
      auto const& spec = table.find(std::string("layers.1.mlp.") + name);
      EXPECT_EQ(spec.size(), 1);
      EXPECT_TRUE(spec.splits.empty());
      EXPECT_EQ(spec.gradient_axes(), token_axes.plus(Axis::tp));
      EXPECT_TRUE(spec.repeated_axes().empty()) << "no rank counts what another one counts";
      EXPECT_EQ(spec.init, Init::constant);
      EXPECT_FALSE(spec.decay);
      // softplus of it, and beta besides
      EXPECT_NEAR(std::log1p(std::exp(spec.value)) + (name == std::string("alpha_n") ? 0.5 : 0.0), 0.8, 1e-15);
    }
    EXPECT_TRUE(table.find("layers.0.mlp.alpha_n").follows_previous) << "a kernel reads them as one vector";
  }
}

TEST(ParamTable, MatricesOfLatentAttention) {
  auto c = test::tiny_mla(true, {.tp = 2});
  c.parallel.sequence = true;
  auto const table = make_param_table(c);
  struct Row {
    char const* name;
    std::int64_t rows, cols;
    std::vector<Split> splits;
  };
  std::vector<Split> const heads{{0, Axis::tp}};
  for (auto const& row : {Row{"q_down", 5, 12, {}}, Row{"kv_down", 6, 12, {}}, Row{"q_latent_norm", 1, 5, {}},
                          Row{"kv_latent_norm", 1, 4, {}}, Row{"q_up", 30, 5, heads}, Row{"kv_up", 42, 4, heads},
                          Row{"out", 12, 24, {{1, Axis::tp}}}}) {
    auto const& spec = table.find(std::string("layers.1.attn.") + row.name + ".weight");
    EXPECT_EQ(spec.rows, row.rows) << row.name;
    EXPECT_EQ(spec.cols, row.cols) << row.name;
    EXPECT_EQ(spec.splits, row.splits) << row.name;
    // Each rank of tp has its rows of latents: those who make them sum their gradients over tp.
    EXPECT_EQ(spec.gradient_axes().has(Axis::tp), row.splits.empty()) << row.name;
  }
  EXPECT_TRUE(table.find("layers.0.attn.kv_down.weight").follows_previous) << "one linear makes both latents";
  c.parallel.sequence = false;
  EXPECT_FALSE(make_param_table(c).find("layers.0.attn.kv_down.weight").gradient_axes().has(Axis::tp));
  auto const plain = make_param_table(test::tiny_mla(false));
  EXPECT_EQ(plain.find("layers.0.attn.q.weight").cols, 12) << "without a latent queries come from the stream";
  EXPECT_FALSE(plain.find("layers.0.attn.kv_down.weight").follows_previous);
}

TEST(ParamTable, InitialDistributionsAndDecay) {
  auto c = test::tiny_gpt();
  auto const table = make_param_table(c);
  for (auto const& s : table.specs()) {
    bool const norm = s.name.find("norm") != std::string::npos;
    bool const bias = s.name.ends_with(".bias");
    EXPECT_EQ(s.decay, !norm && !bias) << s.name;
    EXPECT_EQ(s.init, bias ? Init::zeros : norm ? Init::ones : Init::normal) << s.name;
    if (s.init == Init::normal) {
      bool const into_residual = s.name.ends_with("attn.out.weight") || s.name.ends_with("mlp.down.weight");
      EXPECT_DOUBLE_EQ(s.std, into_residual ? 0.02 / std::sqrt(6.0) : 0.02) << s.name;
    }
    EXPECT_EQ(s.tied, s.name == "embed.token.weight");
  }
  EXPECT_EQ(table.find("embed.token.weight").layer, -1);
  EXPECT_EQ(table.find("layers.2.mlp.up.bias").layer, 2);
  EXPECT_EQ(table.find("final_norm.weight").layer, 3);
  EXPECT_THROW(table.find("head.weight"), base::Error);
}

TEST(ParamTable, RefusesTwoParametersWithOneName) {
  ParamSpec s;
  s.name = "twice";
  EXPECT_THROW(ParamTable({s, s}), base::Error);
}

TEST(StageParams, ShardsTileEveryParameterOnce) {
  for (auto const& c : test::tiny_configs()) {
    SCOPED_TRACE(test::describe(c));
    PerAxis const sizes = c.parallel;
    auto const table = make_param_table(c);
    auto const stages = make_stage_map(c);
    // How often each global element is held, for each pipeline coordinate; padding must lie outside the global array.
    std::map<std::string, std::vector<std::vector<int>>> held;
    for (auto const& s : table.specs()) {
      held[s.name].assign(static_cast<std::size_t>(sizes.pp), std::vector<int>(static_cast<std::size_t>(s.size())));
    }
    for (int stage = 0; stage < stages.num_stages(); ++stage) {
      for (int tp = 0; tp < sizes.tp; ++tp) {
        StageParams const params(table, stages, stage, sizes, at(tp, stages.pipeline_rank(stage)));
        for (auto const& p : params.items()) {
          for (std::int64_t r = 0; r < p.valid_rows; ++r) {
            for (std::int64_t k = 0; k < p.cols; ++k) {
              auto const global = (p.row_begin + r) * p.spec->cols + p.col_begin + k;
              ++held[p.spec->name][static_cast<std::size_t>(stage)].at(static_cast<std::size_t>(global));
            }
          }
          if (p.valid_rows < p.rows) {
            EXPECT_TRUE(p.spec->padded);
            EXPECT_EQ(p.row_begin + p.valid_rows, std::max(p.row_begin, p.spec->rows))
                << "padding lies behind the array";
          }
        }
      }
    }
    for (auto const& s : table.specs()) {
      // Split: once over the tp group. Replicated: once on each of its ranks. On how many stages: tied 2, others 1.
      int const copies = s.splits.empty() ? sizes.tp : 1;
      int stages_holding = 0;
      for (auto const& on_stage : held[s.name]) {
        bool const any = std::any_of(on_stage.begin(), on_stage.end(), [](int n) { return n > 0; });
        stages_holding += any;
        for (int n : on_stage) EXPECT_EQ(n, any ? copies : 0) << s.name;
      }
      EXPECT_EQ(stages_holding, s.tied && sizes.pp > 1 ? 2 : 1) << s.name;
    }
  }
}

TEST(StageParams, PlacesDoNotOverlapAndFusedOnesTouch) {
  for (auto const& c : test::tiny_configs()) {
    SCOPED_TRACE(test::describe(c));
    PerAxis const sizes = c.parallel;
    auto const table = make_param_table(c);
    auto const stages = make_stage_map(c);
    for (int stage = 0; stage < stages.num_stages(); ++stage) {
      StageParams const params(table, stages, stage, sizes, at(sizes.tp - 1, stage));
      std::vector<int> used(static_cast<std::size_t>(params.flat_size()));
      for (auto const& p : params.items()) {
        for (std::int64_t i = 0; i < p.size(); ++i) ++used.at(static_cast<std::size_t>(p.offset + i));
        if (!p.spec->follows_previous) {
          EXPECT_EQ(p.offset % StageParams::alignment, 0) << p.spec->name;
        }
        EXPECT_EQ(&params.find(p.spec->name), &p);
      }
      for (int n : used) EXPECT_LE(n, 1);

      auto touches = [&](std::string const& first, std::string const& second) {
        EXPECT_EQ(params.find(first).offset + params.find(first).size(), params.find(second).offset)
            << first << " " << second;
      };
      for (auto l = stages.layers(stage).begin; l < stages.layers(stage).end; ++l) {
        auto const attn = "layers." + std::to_string(l) + ".attn.", mlp = "layers." + std::to_string(l) + ".mlp.";
        for (std::string const kind : {".weight", ".bias"}) {
          if (c.model.mla.on()) {
            if (kind == ".weight" && c.model.mla.q_lora_rank > 0)
              touches(attn + "q_down" + kind, attn + "kv_down" + kind);
            continue;
          }
          ASSERT_EQ(params.has(attn + "q" + kind), kind == ".weight" || c.model.has_qkv_bias());
          if (!params.has(attn + "q" + kind)) continue;
          touches(attn + "q" + kind, attn + "k" + kind);
          touches(attn + "k" + kind, attn + "v" + kind);
          if (params.has(mlp + "gate" + kind)) touches(mlp + "gate" + kind, mlp + "up" + kind);
        }
      }
    }
  }
}

TEST(StageParams, LocalShapesOnThreeTensorRanks) {
  auto const c = test::tiny_gpt({.tp = 3});
  auto const table = make_param_table(c);
  StageParams const params(table, make_stage_map(c), 0, {.tp = 3}, at(2, 0));
  auto shape = [&](char const* name) {
    auto const& p = params.find(name);
    return std::vector<std::int64_t>{p.rows, p.cols, p.row_begin, p.col_begin, p.valid_rows};
  };
  using Row = std::vector<std::int64_t>;
  EXPECT_EQ(shape("embed.token.weight"), (Row{5, 12, 10, 0, 3}));  // 13 rows padded to 15
  EXPECT_EQ(shape("embed.position.weight"), (Row{5, 12, 0, 0, 5}));
  EXPECT_EQ(shape("layers.1.norm1.weight"), (Row{1, 12, 0, 0, 1}));
  for (auto const* w : {"layers.1.attn.q.weight", "layers.1.attn.k.weight", "layers.1.attn.v.weight"}) {
    EXPECT_EQ(shape(w), (Row{4, 12, 8, 0, 4}));
  }
  EXPECT_EQ(shape("layers.1.attn.v.bias"), (Row{1, 4, 0, 8, 1}));
  EXPECT_EQ(shape("layers.1.attn.out.weight"), (Row{12, 4, 0, 8, 12}));
  EXPECT_EQ(shape("layers.1.attn.out.bias"), (Row{1, 12, 0, 0, 1}));
  EXPECT_EQ(shape("layers.1.mlp.up.weight"), (Row{6, 12, 12, 0, 6}));
  EXPECT_EQ(shape("layers.1.mlp.up.bias"), (Row{1, 6, 0, 12, 1}));
  EXPECT_EQ(shape("layers.1.mlp.down.weight"), (Row{12, 6, 0, 12, 12}));
  EXPECT_EQ(shape("layers.1.mlp.down.bias"), (Row{1, 12, 0, 0, 1}));
}

TEST(StageParams, TiedEmbeddingOnFirstAndLastStage) {
  auto const c = test::tiny_gpt({.pp = 3});
  auto const table = make_param_table(c);
  auto const stages = make_stage_map(c);
  auto has = [&](int stage, char const* name) {
    return StageParams(table, stages, stage, {.pp = 3}, at(0, stage)).has(name);
  };
  EXPECT_TRUE(has(0, "embed.token.weight") && has(2, "embed.token.weight"));
  EXPECT_FALSE(has(1, "embed.token.weight"));
  EXPECT_TRUE(has(0, "embed.position.weight"));
  EXPECT_FALSE(has(2, "embed.position.weight"));
  EXPECT_TRUE(has(2, "final_norm.weight"));
  EXPECT_FALSE(has(0, "final_norm.weight"));
}

// Two chunks to a rank: the part lies with the first of them. 13 rows on up to 9 ranks.
TEST(StageParams, VocabularyIsDividedOverThePipeline) {
  for (bool tied : {true, false})
    for (int pp : {2, 3})
      for (int tp : {1, 2, 3}) {
        auto c = tied ? test::tiny_gpt({.tp = tp, .pp = pp}) : test::tiny_llama({.tp = tp, .pp = pp});
        c.model.layers = 6;
        c.pipeline.vocab_parallel = true;
        SCOPED_TRACE(test::describe(c));
        auto const table = make_param_table(c);
        PerAxis const sizes = c.parallel;
        std::vector<int> ranks_of_stages;
        for (int s = 0; s < 2 * pp; ++s) ranks_of_stages.push_back(s % pp);
        auto const stages = make_stage_map(c, ranks_of_stages);
        for (auto const* name : {"embed.token.weight", "head.weight"}) {
          if (tied && std::string(name) == "head.weight") continue;
          auto const& spec = table.find(name);
          EXPECT_FALSE(spec.tied);
          EXPECT_EQ(spec.gradient_axes(), layout::token_axes);
          std::vector<int> held(static_cast<std::size_t>(spec.rows), 0);
          for (int stage = 0; stage < stages.num_stages(); ++stage)
            for (int t = 0; t < tp; ++t) {
              int const rank = stages.pipeline_rank(stage);
              StageParams const params(table, stages, stage, sizes, at(t, rank));
              EXPECT_EQ(params.has(name), stage < pp);
              EXPECT_EQ(lives_on(spec, stages, stage), stage < pp);
              if (!params.has(name)) continue;
              auto const& p = params.find(name);
              EXPECT_EQ(p.rows, (spec.rows + pp * tp - 1) / (pp * tp));
              EXPECT_EQ(p.row_begin, p.rows * (rank * tp + t));
              for (std::int64_t r = 0; r < p.valid_rows; ++r) ++held[static_cast<std::size_t>(p.row_begin + r)];
            }
          EXPECT_EQ(held, std::vector<int>(held.size(), 1)) << name;
        }
        EXPECT_EQ(table.num_parameters(), make_param_table([&] {
                                            auto whole = c;
                                            whole.pipeline.vocab_parallel = false;
                                            return whole;
                                          }())
                                              .num_parameters());
      }
}

TEST(StageParams, RefusesHeadsThatDoNotDivide) {
  auto const c = test::tiny_gpt();
  auto const table = make_param_table(c);
  StageMap const stages({3}, 1);
  EXPECT_THROW(StageParams(table, stages, 0, {.tp = 5}, at(0, 0)), base::Error);
}

// Sequence parallelism divides the tokens of what tp does not divide. Such parameters of a layer share one bucket.
TEST(StageParams, SequenceParallelismAddsOneBucketToALayer) {
  for (auto c : {test::tiny_gpt(), test::tiny_llama()}) {
    auto const axes = [&](bool sequence) {
      c.parallel.sequence = sequence;
      auto const table = make_param_table(c);
      auto const stages = make_stage_map(c);
      StageParams const params(table, stages, 0, c.parallel, at(0, 0));
      for (auto const& item : params.items()) {
        bool const shares = sequence && item.spec->splits.empty();
        EXPECT_EQ(item.spec->gradient_axes(), shares ? token_axes.plus(Axis::tp) : token_axes) << item.spec->name;
        EXPECT_EQ(item.spec->repeated_axes().has(Axis::tp), !sequence && item.spec->splits.empty());
      }
      std::vector<AxisSet> of_layer;
      for (auto const& b : make_buckets(params, 1 << 30))
        if (params.items()[b.first].spec->layer == 0) of_layer.push_back(b.axes);
      return of_layer;
    };
    EXPECT_EQ(axes(false), (std::vector<AxisSet>{token_axes}));
    EXPECT_EQ(axes(true), (std::vector<AxisSet>{token_axes.plus(Axis::tp), token_axes}));
  }
}

}  // namespace
