// SPDX-License-Identifier: Apache-2.0
// pipeline.vocab_parallel and what does not go with it; every fix is tried.

#include "support.hpp"

namespace p3d::config::test {
namespace {

ParseResult divided(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"pipeline.vocab_parallel=true", "parallel.pp=2"});
  return parse("", overrides, 0);
}

TEST(VocabParallel, DividesWhereThereAreSeveralPipelineRanks) {
  EXPECT_TRUE(divided({}).config->divides_vocabulary());
  EXPECT_FALSE(divided({"parallel.pp=1"}).config->divides_vocabulary());
  EXPECT_FALSE(parse("", {"parallel.pp=2"}, 0).config->divides_vocabulary());
}

TEST(VocabParallel, RefusesWhatDoesNotGoWithIt) {
  struct Case {
    std::string key, value;
    std::vector<std::string> more;
  };
  for (Case const& c :
       {Case{"memory.reduce", "microbatch", {"parallel.dp=2", "memory.shard=gradients"}},
        {"comm.overlap_tp", "microbatch", {"parallel.tp=2"}},
        {"batch.variable", "true", {"data.shuffle=documents", "data.format=megatron", "data.path=/"}},
        {"pipeline.schedule", "file", {std::string("pipeline.file=\"") + P3D_SOURCE_DIR + "/LICENSE\""}}}) {
    auto words = c.more;
    words.push_back(c.key + "=" + c.value);
    auto const result = divided(words);
    ASSERT_EQ(result.errors.size(), 1u) << format(result.errors);
    EXPECT_EQ(result.errors.front().key, c.key);
    expect_contains(result.errors.front().fix, "set pipeline.vocab_parallel to false");
    words.emplace_back("pipeline.vocab_parallel=false");
    EXPECT_TRUE(divided(words).config) << c.key;
    // Where nothing is divided the key is in nobody's way.
    words.back() = "parallel.pp=1";
    EXPECT_TRUE(divided(words).config) << c.key;
  }
  for (auto const* good : {"memory.shard=optimizer", "memory.shard=gradients", "memory.shard=parameters",
                           "memory.offload_optimizer=disk", "memory.offload_parameters=disk",
                           "memory.offload_activations=disk", "memory.recompute=full", "precision.pipeline=bf16"}) {
    bool const narrow = std::string_view(good).ends_with("bf16");
    if (narrow && !has_precision(Precision::bf16)) continue;
    EXPECT_TRUE(divided({"parallel.dp=2", "batch.microbatches=4", good}).config) << good;
  }
}

TEST(PostValidation, RefusesWhatCannotBeTakenBack) {
  auto const with = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"optimizer.post_validation=true", "parallel.pp=2", "batch.microbatches=4"});
    return parse("", words, 0);
  };
  EXPECT_TRUE(with({"memory.shard=parameters", "parallel.dp=2", "run.trace=true"}).config);
  EXPECT_FALSE(parse("", {}, 0).config->optimizer.post_validation);
  for (auto const* other :
       {"memory.offload_optimizer=disk", "memory.offload_parameters=disk", "memory.offload_activations=disk",
        "model.moe.experts=4", "optimizer.delay=1", "pipeline.p2p=ring"}) {
    auto const result = with({other});
    ASSERT_EQ(result.errors.size(), 1u) << format(result.errors);
    auto const key = std::string(other).substr(0, std::string(other).find('='));
    expect_contains(result.errors.front().fix, "remove optimizer.post_validation, or " + key);
    EXPECT_TRUE(with({other, "optimizer.post_validation=false"}).config) << other;
  }
}

TEST(WeightDeferral, RefusesWhatDoesNotGoWithIt) {
  auto const with = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"pipeline.weight_deferral_limit=2", "parallel.pp=2"});
    return parse("", words, 0);
  };
  EXPECT_TRUE(with({}).config);
  std::string const licence = std::string("pipeline.file=\"") + P3D_SOURCE_DIR + "/LICENSE\"";
  for (std::vector<std::string> words : {std::vector<std::string>{"pipeline.vocab_parallel=true"},
                                         {"pipeline.schedule=file", licence},
                                         {"comm.overlap_tp=microbatch", "parallel.tp=2"},
                                         {"comm.overlap_experts=true", "model.moe.experts=4", "parallel.dp=2",
                                          "parallel.ep=2", "batch.microbatches=4"}}) {
    auto const result = with(words);
    ASSERT_EQ(result.errors.size(), 1u) << format(result.errors);
    expect_contains(result.errors.front().fix, "set pipeline.weight_deferral_limit to 0");
    words.emplace_back("pipeline.weight_deferral_limit=0");
    EXPECT_TRUE(with(words).config) << words.front();
  }
}

}  // namespace
}  // namespace p3d::config::test
