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
  for (std::vector<std::string> words :
       {std::vector<std::string>{"model.preset=llama-tiny", "model.mtp.depth=1"},
        {"parallel.embedding=replicated", "parallel.tp=2", "model.tied_embeddings=false"}}) {
    auto const result = divided(words);
    ASSERT_EQ(result.errors.size(), 1u) << format(result.errors);
    expect_contains(result.errors.front().expected, "pipeline.vocab_parallel");
    words.emplace_back("pipeline.vocab_parallel=false");
    EXPECT_TRUE(divided(words).config) << words.front();
    // Where nothing is divided the key is in nobody's way.
    words.back() = "parallel.pp=1";
    EXPECT_TRUE(divided(words).config) << words.front();
  }
}

TEST(VocabParallel, GoesWithAllElse) {
  for (auto const* good : {"memory.shard=optimizer", "memory.shard=gradients", "memory.shard=parameters",
                           "memory.offload_optimizer=disk", "memory.offload_parameters=disk",
                           "memory.offload_activations=disk", "memory.recompute=full", "precision.pipeline=bf16"}) {
    bool const narrow = std::string_view(good).ends_with("bf16");
    if (narrow && !has_precision(Precision::bf16)) continue;
    EXPECT_TRUE(divided({"parallel.dp=2", "batch.microbatches=4", good}).config) << good;
  }
  for (std::vector<std::string> const& good :
       {std::vector<std::string>{"comm.overlap_tp=microbatch", "parallel.tp=2"},
        {"memory.reduce=microbatch", "parallel.dp=2", "memory.shard=gradients"},
        {"comm.overlap_experts=true", "model.moe.experts=4", "parallel.dp=2", "parallel.ep=2", "batch.microbatches=4"},
        {"batch.variable=true", "data.shuffle=documents", "data.format=megatron", "data.path=/"},
        {"pipeline.schedule=file", std::string("pipeline.file=\"") + P3D_SOURCE_DIR + "/LICENSE\""}}) {
    auto const result = divided(good);
    EXPECT_TRUE(result.config) << good.front() << format(result.errors);
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
