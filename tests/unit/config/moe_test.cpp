// SPDX-License-Identifier: Apache-2.0
// The keys and rules of mixture-of-experts models; every fix is tried.

#include "support.hpp"

namespace p3d::config::test {
namespace {

std::string const experts = "[model.moe]\nexperts = 8\n";

ParseResult moe(std::vector<std::string> const& overrides, int ranks = 0) { return parse(experts, overrides, ranks); }

TEST(Moe, IsASectionOfTheModel) {
  auto const c = good("[model]\nffn = 96\n[model.moe]\nexperts = 8\ntop_k = 3\nscore = \"sigmoid\"\n");
  EXPECT_EQ(c.model.moe.experts, 8);
  EXPECT_EQ(c.model.moe.top_k, 3);
  EXPECT_EQ(c.model.moe.score, RouterScore::sigmoid);
  EXPECT_EQ(c.model.moe.ffn, 96) << "follows model.ffn";
  EXPECT_EQ(good("[model]\nmoe.experts = 8\n").model.moe.experts, 8) << "TOML's other way to write it";
  EXPECT_EQ(good("", {"model.moe.experts=8"}).model.moe.experts, 8);
  EXPECT_FALSE(good("").model.moe.on());
  expect_contains(canonical_toml(c), "\n[model.moe]\nexperts = 8\ntop_k = 3\n");
}

TEST(Moe, MistakesInTheSectionAreFound) {
  auto error = only_error(parse("[model.moe]\nexpert = 8\n"));
  EXPECT_EQ(error.key, "model.moe.expert");
  EXPECT_EQ(error.where, "t.toml:2:1");
  expect_contains(error.expected, "a key of [model.moe]: experts, top_k");
  EXPECT_EQ(error.fix, "did you mean experts?");
  EXPECT_EQ(only_error(parse("", {"model.moe.expert=8"})).fix, "did you mean model.moe.experts?");
  EXPECT_EQ(only_error(parse("[moe]\nexperts = 8\n")).fix, "did you mean [model.moe]?");
  error = only_error(parse("[model]\nmoe = 8\n"));
  EXPECT_EQ(error.where, "t.toml:2:1");
  EXPECT_EQ(error.fix, "write [model.moe] on a line of its own, its keys below it");
  EXPECT_EQ(only_error(parse("[[model.moe]]\nexperts = 8\n")).key, "model.moe");
  EXPECT_EQ(only_error(parse("[model.mo]\nexperts = 8\n")).key, "model.mo");
  for (auto const* wrong : {"experts=-1", "top_k=0", "jitter=1", "scale=0", "buffer_factor=0", "dispatch=both"})
    EXPECT_EQ(moe({std::string("model.moe.") + wrong}).errors.size(), 1u) << wrong;
}

TEST(Moe, ALossThatDependsOnTheMicrobatchIsRefusedWithTheReason) {
  auto const error = only_error(moe({"model.moe.aux_loss=microbatch"}));
  EXPECT_EQ(error.key, "model.moe.aux_loss");
  expect_contains(error.fix, "another one with every batch.micro");
  for (auto const* kind : {"none", "sequence", "global"})
    EXPECT_STREQ(to_string(moe({std::string("model.moe.aux_loss=") + kind}).config->model.moe.aux_loss), kind);
}

TEST(Moe, OverlapHasMessagesToHide) {
  for (auto const& words : std::vector<std::vector<std::string>>{
           {"model.moe.experts=0", "parallel.dp=2"}, {"parallel.dp=2"}, {"parallel.dp=2", "parallel.tp=1"}}) {
    auto all = words;
    all.emplace_back("comm.overlap_experts=true");
    auto const error = only_error(moe(all, 2));
    EXPECT_EQ(error.key, "comm.overlap_experts");
    expect_contains(error.fix, "set parallel.ep or parallel.etp above 1");
  }
  for (auto const* axis : {"parallel.ep=2", "parallel.etp=2"})
    EXPECT_TRUE(moe({"parallel.dp=2", axis, "comm.overlap_experts=true"}, 2).config->comm.overlap_experts);
}

TEST(Moe, LayersWithExperts) {
  struct Case {
    std::int64_t layers, every, first_dense;
    std::vector<std::int64_t> with;
  };
  for (auto const& k : {Case{4, 1, 0, {0, 1, 2, 3}}, Case{4, 2, 0, {1, 3}}, Case{7, 3, 0, {2, 5}},
                        Case{4, 1, 1, {1, 2, 3}}, Case{7, 2, 2, {3, 5}}, Case{7, 3, 3, {5}}, Case{3, 3, 2, {2}}}) {
    Model m;
    m.layers = k.layers, m.moe.experts = 4, m.moe.every = k.every, m.moe.first_dense = k.first_dense;
    std::vector<std::int64_t> found;
    for (std::int64_t l = 0; l < m.layers; ++l)
      if (m.has_experts(l)) found.push_back(l);
    EXPECT_EQ(found, k.with) << k.layers << " " << k.every << " " << k.first_dense;
    EXPECT_EQ(m.moe_layers(), static_cast<std::int64_t>(k.with.size()));
    m.moe.experts = 0;
    EXPECT_FALSE(m.has_experts(k.with.front()));
    EXPECT_EQ(m.moe_layers(), 0);
  }
}

struct RefusedMoe {
  std::vector<std::string> overrides;
  int ranks;
  char const *key, *found, *fix;
  std::vector<std::string> works;  // each alone repairs it
};

TEST(Moe, EachRuleNamesWhatWorks) {
  for (auto const& r : std::vector<RefusedMoe>{
           {{"model.moe.top_k=9"},
            0,
            "model.moe.top_k",
            "top_k 9 of 8 experts",
            "set model.moe.top_k to at most 8, or model.moe.experts to at least 9",
            {"model.moe.top_k=8", "model.moe.experts=9"}},
           {{"model.layers=4", "model.moe.every=3", "model.moe.first_dense=3"},
            0,
            "model.moe.every",
            "none of 4 layers: every 3, first_dense 3",
            "set model.moe.first_dense to at most 2, or model.moe.experts to 0",
            {"model.moe.first_dense=2"}},
           {{"model.moe.groups=3", "model.moe.group_top_k=2"},
            0,
            "model.moe.groups",
            "experts 8, groups 3: remainder 2",
            "set model.moe.groups to 2 or 4, or model.moe.experts to 6 or 9",
            {"model.moe.groups=2", "model.moe.groups=4", "model.moe.experts=6", "model.moe.experts=9"}},
           {{"model.moe.groups=4", "model.moe.group_top_k=1", "model.moe.top_k=4"},
            0,
            "model.moe.group_top_k",
            "group_top_k 1 of 4 groups of 2 experts, top_k 4",
            "set model.moe.group_top_k to 2 to 4",
            {"model.moe.group_top_k=2", "model.moe.group_top_k=4"}},
           {{"model.moe.groups=4"},
            0,
            "model.moe.group_top_k",
            "group_top_k 0 of 4 groups of 2 experts, top_k 2",
            "set model.moe.group_top_k to 1 to 4",
            {"model.moe.group_top_k=1"}},
           {{"model.moe.group_top_k=2"},
            0,
            "model.moe.group_top_k",
            "group_top_k 2, groups 0",
            "set model.moe.groups, or remove model.moe.group_top_k",
            {"model.moe.groups=2"}},
           {{"model.moe.shared_gate=true"},
            0,
            "model.moe.shared_gate",
            "shared_gate true, shared_ffn 0",
            "set model.moe.shared_ffn, or model.moe.shared_gate to false",
            {"model.moe.shared_ffn=16", "model.moe.shared_gate=false"}},
           {{"parallel.tp=2"},
            2,
            "parallel.sequence",
            "sequence false, tp 2",
            "set parallel.sequence to true, or parallel.tp to 1",
            {"parallel.sequence=true", "parallel.tp=1"}},
           {{"parallel.tp=4", "parallel.sequence=true", "model.moe.shared_ffn=18"},
            4,
            "parallel.tp",
            "shared_ffn 18, tp 4: remainder 2",
            "set parallel.tp to 3 or 6, or model.moe.shared_ffn to 16 or 20",
            {"model.moe.shared_ffn=16", "model.moe.shared_ffn=20"}},
           {{"parallel.dp=6", "parallel.ep=6"},
            6,
            "parallel.ep",
            "experts 8, ep 6: remainder 2",
            "set parallel.ep to 2, or model.moe.experts to 6 or 12",
            {"parallel.ep=2", "model.moe.experts=6", "model.moe.experts=12"}},
           {{"parallel.dp=12", "parallel.ep=3", "parallel.etp=2"},
            12,
            "parallel.ep",
            "experts 8, ep 3: remainder 2",
            "set parallel.ep to 2, or model.moe.experts to 6 or 9",
            {"parallel.ep=2", "model.moe.experts=6"}},
           {{"parallel.dp=6", "parallel.etp=6", "model.moe.ffn=16"},
            6,
            "parallel.etp",
            "ffn 16, etp 6: remainder 4",
            "set parallel.etp to 2, or model.moe.ffn to 12 or 18",
            {"parallel.etp=2", "model.moe.ffn=12", "model.moe.ffn=18"}},
           // The mesh's own rule names only what suits the experts too: 3 would do for a layout.
           {{"parallel.dp=6", "parallel.ep=4"},
            6,
            "parallel.dp",
            "6 ranks of a stage, for etp 1 x ep 4",
            "set parallel.ep to 2",
            {"parallel.ep=2"}}}) {
    auto overrides = r.overrides;
    auto const error = only_error(moe(overrides, r.ranks));
    EXPECT_EQ(error.key, r.key);
    expect_contains(error.found, r.found);
    EXPECT_EQ(error.fix.substr(0, error.fix.find(", or parallel.etp to")), r.fix);
    for (auto const& works : r.works) {
      auto repaired = overrides;
      repaired.push_back(works);
      auto const result = moe(repaired, works == "parallel.tp=1" ? 0 : r.ranks);
      EXPECT_TRUE(result.config) << works << "\n" << format(result.errors);
    }
  }
}

TEST(Moe, WhatExpertsDoNotGoWithIsRefused) {
  struct Refused {
    std::vector<std::string> overrides;
    char const* key;
    char const* fix;
  };
  std::vector<std::string> const documents{"data.format=megatron", "data.shuffle=documents",
                                           std::string("data.path=") + P3D_SOURCE_DIR + "/LICENSE"};
  auto const with = [](std::vector<std::string> words, std::vector<std::string> const& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (auto const& r : std::vector<Refused>{
           {with(documents, {"batch.variable=true"}), "batch.variable", "remove batch.variable"},
           {{"memory.offload_activations=disk", "batch.microbatches=4"},
            "memory.offload_activations",
            "memory.recompute saves activations too"},
           {{"memory.offload_optimizer=disk", "model.moe.bias_update_rate=1e-3"},
            "memory.offload_optimizer",
            "balance by model.moe.aux_loss = \"sequence\""},
           {{"memory.offload_parameters=disk", "model.moe.aux_loss=global"},
            "memory.offload_optimizer",
            "balance by model.moe.aux_loss = \"sequence\""},
           {{"model.moe.aux_loss=sequence", "data.pack=true", "data.eod_token=3"},
            "model.moe.aux_loss",
            "balance by model.moe.bias_update_rate"},
           {{"model.activation=xielu"}, "model.activation", "\"swiglu\", or model.moe.experts to 0"}}) {
    auto const error = only_error(moe(r.overrides, 1));
    EXPECT_EQ(error.key, r.key);
    expect_contains(error.fix, r.fix);
  }
  auto const error =
      only_error(moe({"model.moe.capacity_factor=1", "parallel.cp=2", "context.order=zigzag", "parallel.dp=1"}, 2));
  EXPECT_EQ(error.key, "model.moe.capacity_factor");
  expect_contains(error.fix, "set context.order to \"contiguous\"");
}

TEST(Moe, BiasesOfTheChoiceAreThereWhereTheyMove) {
  EXPECT_FALSE(moe({}, 1).config->model.moe.choice_bias);
  EXPECT_TRUE(moe({"model.moe.bias_update_rate=0.01"}, 1).config->model.moe.choice_bias);
  auto const constant = moe({"model.moe.choice_bias=true", "memory.offload_optimizer=disk"}, 1);
  ASSERT_TRUE(constant.config) << format(constant.errors);
  EXPECT_FALSE(constant.config->model.moe.changes_router());
  auto const error = only_error(moe({"model.moe.bias_update_rate=0.01", "model.moe.choice_bias=false"}, 1));
  EXPECT_EQ(error.key, "model.moe.bias_update_rate");
  expect_contains(error.fix, "remove model.moe.choice_bias");
  EXPECT_FALSE(good("", {"model.preset=deepseek-moe-tiny", "model.moe.bias_update_rate=0"}).model.moe.choice_bias);
  EXPECT_TRUE(good("", {"model.preset=qwen-moe-tiny", "model.moe.bias_update_rate=0.01"}).model.moe.choice_bias);
}

TEST(Moe, KeysOfExpertsWithoutExpertsAreRefused) {
  auto const error = only_error(parse("[model.moe]\ntop_k = 4\n"));
  EXPECT_EQ(error.key, "model.moe.top_k");
  EXPECT_EQ(error.found, "top_k = 4, and no experts");
  EXPECT_EQ(error.where, "t.toml:2:9 (model.moe.top_k = 4); t.toml:1:1 (model.moe.experts = 0 by default)");
  EXPECT_EQ(only_error(parse("[model.moe]\nffn = 24\n")).key, "model.moe.ffn");
  good("[model.moe]\ntop_k = 2\nexperts = 0\nffn = 256\n");  // as a dump of a dense model has them
}

TEST(Moe, TpNeedNotDivideAnMlpThatNoLayerHas) {
  std::vector<std::string> const base{"model.ffn=250", "model.moe.ffn=64", "parallel.tp=4", "parallel.sequence=true"};
  EXPECT_TRUE(moe(base, 4).config);
  auto dense = base;
  dense.push_back("model.moe.first_dense=1");
  EXPECT_EQ(only_error(moe(dense, 4)).key, "parallel.tp");
}

TEST(Moe, SizesBeyondAnyMemoryAreRefused) {
  auto const error = only_error(parse("", {"model.moe.experts=65536", "model.moe.ffn=16777216", "model.layers=100"}));
  EXPECT_EQ(error.key, "model.hidden");
  expect_contains(error.fix, "model.moe.experts");
}

TEST(Axes, ThoseOfExpertsSplitTokensOfExpertsOnly) {
  EXPECT_EQ(names(token_axes, " "), "cp dp");
  EXPECT_EQ(names(expert_token_axes, " "), "ep edp");
  EXPECT_EQ(names(shown_axes({.tp = 2}), " "), "tp cp pp dp");
  EXPECT_EQ(names(shown_axes({.dp = 2, .edp = 2}), " "), "tp cp pp dp") << "edp is what the others leave";
  EXPECT_EQ(names(shown_axes({.dp = 2, .ep = 2}), " "), "tp cp pp dp etp ep edp");
}

}  // namespace
}  // namespace p3d::config::test
