// SPDX-License-Identifier: Apache-2.0
// The keys of [memory]: their values, and rules between them.
#include "support.hpp"

namespace p3d::config::test {
namespace {

TEST(Memory, ReadsWhatIsRecomputed) {
  EXPECT_EQ(good("").memory.recompute, Recompute::none);
  EXPECT_EQ(good("[memory]\nrecompute = \"full\"\n").memory.recompute, Recompute::full);
  auto const list = good("[memory]\nrecompute = [\"attention\", \"norm\"]\n").memory;
  EXPECT_EQ(list.recompute, Recompute::list);
  EXPECT_EQ(list.recompute_ops, (RecomputedOps{.norm = true, .attention = true}));
  EXPECT_EQ(only_error(parse("[memory]\nrecompute = [\"norm\", \"gelu\"]\n")).key, "memory.recompute");
  EXPECT_EQ(only_error(parse("[memory]\nrecompute = \"norm\"\n")).key, "memory.recompute");
}

/// One error, of this key, with these words.
void refused(std::string const& text, char const* key, char const* expected, char const* found) {
  auto const error = only_error(parse("[memory]\n" + text));
  EXPECT_EQ(error.key, key) << text;
  expect_contains(error.expected, expected);
  expect_contains(error.found, found);
}

TEST(Memory, KeysOfFullRecomputationNeedIt) {
  for (std::string const key :
       {"recompute_every = 2", "recompute_layers = 2", "recompute_group = 2", "recompute_microbatches_kept = 2",
        "recompute_communication = false", "share_saved_inputs = true"}) {
    auto const name = "memory." + key.substr(0, key.find(' '));
    refused(key, name.c_str(), "only with recompute = \"full\"", "another recompute");
    refused("recompute = [\"norm\"]\n" + key, name.c_str(), "only with recompute = \"full\"", "another recompute");
  }
}

TEST(Memory, ValuesOfFullRecomputationGoTogether) {
  std::string const full = "recompute = \"full\"\n";
  refused(full + "recompute_every = 2\nrecompute_layers = 4\n", "memory.recompute_every",
          "every n-th layer, or the first n", "recompute_every 2, recompute_layers 4");
  refused(full + "recompute_every = 3\nrecompute_group = 2\n", "memory.recompute_group", "groups of neighbouring",
          "recompute_group 2 of every 3th layer");
  refused(full + "recompute_communication = false\n", "memory.recompute_communication", "no all-reduces over tp",
          "tp 1");
  refused(full + "share_saved_inputs = true\n", "memory.share_saved_inputs", "nobody to share inputs with", "tp 1");
  refused(full + "recompute_communication = false\nrecompute_group = 2\n[parallel]\ntp = 2\n", "memory.recompute_group",
          "groups whose all-reduces over tp are made again", "recompute_communication false");
  good("[memory]\n" + full +
       "recompute_layers = 4\nrecompute_group = 2\nrecompute_microbatches_kept = 1\nshare_saved_inputs = true\n"
       "[parallel]\ntp = 2\n");
  good("[memory]\n" + full + "recompute_every = 2\nrecompute_communication = false\n[parallel]\ntp = 2\n");
}

TEST(Memory, OffloadedParametersAreOwnedWholeOrInParts) {
  auto const disk = std::string("offload_parameters = \"disk\"\n");
  EXPECT_EQ(good("[memory]\n" + disk).memory.gather, MessageEvery::microbatch);
  EXPECT_EQ(good("[memory]\ngather = \"step\"\n" + disk).memory.gather, MessageEvery::step);
  good("[memory]\n" + disk + "shard = \"parameters\"\n[parallel]\ndp = 2\n");
  for (auto const* shard : {"optimizer", "gradients"})
    refused(disk + "shard = \"" + shard + "\"\n[parallel]\ndp = 2\n", "memory.offload_parameters", "in parts", shard);
}

Memory preset(std::string const& name, std::string const& more = "", std::string const& parallel = "dp = 2") {
  return good("[memory]\npreset = \"" + name + "\"\n" + more + "[parallel]\n" + parallel + "\n").memory;
}

TEST(MemoryPreset, StandsForKeys) {
  for (auto const* name : {"none", "basic", ""}) {
    auto m = preset(name);
    EXPECT_EQ(m.preset, name);
    m.preset = "";
    EXPECT_EQ(m, Memory{}) << name;
  }
  auto const low = preset("low");
  EXPECT_EQ(low.recompute, Recompute::list);
  EXPECT_EQ(low.recompute_ops, (RecomputedOps{.norm = true, .activation = true}));
  EXPECT_EQ(low.shard, Shard::optimizer);
  for (auto const* name : {"medium", "standard"}) {
    auto const m = preset(name);
    EXPECT_EQ(m.recompute, Recompute::full);
    EXPECT_EQ(m.recompute_every, 2);
    EXPECT_EQ(m.shard, Shard::optimizer);
    EXPECT_EQ(m.offload_optimizer, OffloadTo::none);
  }
  for (auto const* name : {"high", "aggressive"}) {
    auto const m = preset(name);
    EXPECT_EQ(m.recompute, Recompute::full);
    EXPECT_EQ(m.recompute_every, 1);
    EXPECT_EQ(m.shard, Shard::gradients);
  }
  auto const extreme = preset("extreme");
  EXPECT_EQ(extreme.shard, Shard::parameters);
  EXPECT_EQ(extreme.gather, MessageEvery::microbatch);
  EXPECT_EQ(extreme.offload_optimizer, OffloadTo::disk);
  EXPECT_EQ(extreme.offload_activations, OffloadTo::none);  // one microbatch
  EXPECT_EQ(preset("extreme", "", "dp = 2\n[batch]\nmicrobatches = 4").offload_activations, OffloadTo::disk);
  auto const pipeline = good("[memory]\npreset = \"high\"\n[parallel]\npp = 2\n");
  EXPECT_EQ(pipeline.pipeline.lookahead, 0);
  EXPECT_EQ(pipeline.memory.shard, Shard::none);  // no replicas
  EXPECT_FALSE(pipeline.parallel.sequence);       // and no tp
  EXPECT_TRUE(good("[memory]\npreset = \"low\"\n[parallel]\ntp = 2\n").parallel.sequence);
  EXPECT_FALSE(good("[memory]\npreset = \"none\"\n[parallel]\ntp = 2\n").parallel.sequence);
}

TEST(MemoryPreset, KeysOfTheInputWin) {
  EXPECT_EQ(preset("high", "shard = \"none\"\n").shard, Shard::none);
  EXPECT_EQ(preset("high", "recompute = \"none\"\n").recompute, Recompute::none);
  auto const groups = preset("medium", "recompute_group = 2\n");
  EXPECT_EQ(groups.recompute_group, 2);
  EXPECT_EQ(groups.recompute_every, 1);
  EXPECT_EQ(preset("extreme", "gather = \"step\"\n").gather, MessageEvery::step);
  EXPECT_EQ(preset("extreme", "shard = \"optimizer\"\n").gather, MessageEvery::step);
  EXPECT_EQ(preset("extreme", "", "dp = 1").shard, Shard::none);
  good("[memory]\npreset = \"high\"\nshare_saved_inputs = true\n[parallel]\ntp = 2\n");
  auto const limited = preset("low", "limit = 8.0\n");
  EXPECT_FALSE(limited.free.recompute);  // the preset has chosen
  EXPECT_FALSE(limited.free.shard);
  EXPECT_FALSE(limited.free.offload_optimizer);
  refused("preset = \"low\"\nrecompute_every = 2\n", "memory.recompute_every", "only with recompute = \"full\"",
          "another recompute");
  EXPECT_EQ(only_error(parse("[memory]\npreset = \"hihg\"\n")).key, "memory.preset");
  EXPECT_EQ(good("[memory]\npreset = \"extreme\"\n[optimizer]\ntype = \"sgd\"\n").memory.offload_optimizer,
            OffloadTo::none);  // which has no state
}

// A preset sets no key that a rule refuses.
TEST(MemoryPreset, KeepsToTheRules) {
  auto const valid = good(
      "[memory]\npreset = \"extreme\"\n[optimizer]\npost_validation = true\n[parallel]\ndp = 2\n"
      "[batch]\nmicrobatches = 4\n");
  EXPECT_EQ(valid.memory.offload_optimizer, OffloadTo::none);
  EXPECT_EQ(valid.memory.offload_activations, OffloadTo::none);
  EXPECT_EQ(valid.memory.shard, Shard::parameters);
  for (auto const* name : {"low", "high", "extreme"}) {
    auto const compressed = good(std::string("[memory]\npreset = \"") + name + "\"\n",
                                 {"comm.compress=int8", "comm.workers=4", "batch.global=8", "parallel.dp=2"});
    EXPECT_EQ(compressed.memory.shard, Shard::optimizer) << name;
    EXPECT_EQ(compressed.memory.gather, MessageEvery::step) << name;
  }
  std::string const four = "[memory]\npreset = \"low\"\n[model]\nheads = 4\nhidden = 16\nffn = 32\nseq_len = 4\n";
  EXPECT_TRUE(good(four, {"parallel.tp=4"}).parallel.sequence);
  EXPECT_FALSE(good(four, {"parallel.tp=4", "parallel.cp=2"}).parallel.sequence) << "two tokens for four ranks";
}

TEST(MemoryPreset, IsShownAsItsKeys) {
  for (auto const* name : {"low", "medium", "high", "extreme"}) {
    auto const config = good(std::string("[memory]\npreset = \"") + name + "\"\n[parallel]\ndp = 2\npp = 2\n");
    EXPECT_EQ(good(canonical_toml(config)), config) << name;
  }
}

TEST(Memory, SequenceParallelismHasTokensForEveryRank) {
  auto const refused_with = [](std::string const& text, char const* key, char const* expected, char const* found) {
    auto const error = only_error(parse("[parallel]\nsequence = true\n" + text));
    EXPECT_EQ(error.key, key) << text;
    expect_contains(error.expected, expected);
    expect_contains(error.found, found);
  };
  refused_with("", "parallel.sequence", "parallel.tp above 1", "tp 1");
  refused_with("tp = 2\n[memory]\nrecompute = \"full\"\nshare_saved_inputs = true\n", "memory.share_saved_inputs",
               "inputs that all ranks of tp hold", "divides them already");
  std::string const four = "tp = 4\n[model]\nheads = 4\nhidden = 16\nffn = 32\n";
  refused_with(four + "seq_len = 3\n[batch]\nmicro = 1\n", "parallel.sequence", "for each rank of tp",
               "1 x 3 / 1 = 3 tokens for tp 4");
  good("[parallel]\nsequence = true\n" + four + "seq_len = 3\n[batch]\nmicro = 2\n");
}

// memory.limit asks the rules about a whole Config, which does not know what was written: a width of heads that does
// not follow from model.hidden, or a layout that is chosen.
TEST(Memory, WholeConfigsAreAllowedWhereTheirInputIs) {
  for (std::string const& text :
       {std::string("[model]\nhidden = 13\nheads = 2\nhead_dim = 6\n"), std::string("[batch]\nglobal = 8\nmicro = 2\n"),
        std::string("[model]\npreset = \"qwen3-0.6b\"\n"), std::string("[model.moe]\nexperts = 4\nffn = 24\n")}) {
    auto const result = parse(text + "[data]\nformat = \"synthetic\"\n");
    ASSERT_TRUE(result.config) << text;
    EXPECT_TRUE(allowed(*result.config)) << text;
  }
  auto wrong = *parse("[model]\nhidden = 16\nheads = 2\n[data]\nformat = \"synthetic\"\n").config;
  wrong.memory.shard = Shard::gradients;
  wrong.memory.offload_parameters = OffloadTo::disk;
  EXPECT_FALSE(allowed(wrong));
}

TEST(Memory, OffloadedActivationsNeedMicrobatchesThatWait) {
  std::string const disk = "offload_activations = \"disk\"\n";
  refused(disk + "[batch]\nmicrobatches = 2\n", "memory.offload_activations", "at least 3 microbatches", "2");
  refused(disk + "recompute = \"full\"\nrecompute_microbatches_kept = 1\n[batch]\nmicrobatches = 4\n",
          "memory.offload_activations", "kept in memory, or offloaded", "recompute_microbatches_kept 1");
  good("[memory]\n" + disk + "recompute = \"full\"\n[batch]\nmicrobatches = 3\n");
}

}  // namespace
}  // namespace p3d::config::test
