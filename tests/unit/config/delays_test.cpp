// SPDX-License-Identifier: Apache-2.0
// pipeline.delays: which layer is how late, what a PipeDream pipeline has by itself, and what is refused; every fix is
// tried.

#include "support.hpp"

namespace p3d::config::test {
namespace {

ParseResult parsed(std::vector<std::string> words) {
  words.insert(words.begin(), {"model.layers=8", "model.tied_embeddings=false", "run.seed=1"});
  return parse("", words, 0);
}
std::vector<std::int64_t> by_layer(Config const& c) {
  std::vector<std::int64_t> out;
  for (std::int64_t l = -1; l <= c.model.layers; ++l) out.push_back(c.delay_of(l));
  return out;
}

TEST(Delays, APartOfTheLayersHasEachNumber) {
  auto const list = parsed({"pipeline.delays=[3,2,1,0]"});
  ASSERT_TRUE(list.config) << format(list.errors);
  EXPECT_EQ(list.config->latest_delay(), 3);
  EXPECT_TRUE(list.config->mixes_delays());
  // The embedding goes with the first layer, the head with the last.
  EXPECT_EQ(by_layer(*list.config), (std::vector<std::int64_t>{3, 3, 3, 2, 2, 1, 1, 0, 0, 0}));
  auto const equal = parsed({"pipeline.delays=[2,2]"});
  EXPECT_FALSE(equal.config->mixes_delays());
  EXPECT_EQ(equal.config->latest_delay(), 2);
  auto const none = parsed({"optimizer.delay=1", "pipeline.delays=[]"});
  EXPECT_EQ(by_layer(*none.config), std::vector<std::int64_t>(10, 1));
}

TEST(Delays, PipeDreamHasItsOwn) {
  auto const own = [](std::vector<std::string> words) {
    words.insert(words.end(), {"pipeline.schedule=pipedream", "batch.micro=1"});
    auto const result = parsed(words);
    std::vector<std::int64_t> out;
    if (result.config)
      for (std::int64_t l = -1; l <= 8; ++l) out.push_back(result.config->delay_of(l));
    return out;
  };
  using Delays = std::vector<std::int64_t>;
  EXPECT_EQ(own({"parallel.pp=4", "batch.global=1"}), (Delays{3, 3, 3, 2, 2, 1, 1, 0, 0, 0}));
  EXPECT_EQ(own({"parallel.pp=4", "batch.global=2"}), (Delays{2, 2, 2, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(own({"parallel.pp=4"}), (Delays{1, 1, 1, 1, 1, 1, 1, 0, 0, 0})) << "as many microbatches as stages";
  EXPECT_EQ(own({"parallel.pp=3", "batch.global=1", "pipeline.layers_per_stage=[1,2,5]"}),
            (Delays{2, 2, 1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(own({"parallel.pp=3", "batch.global=3", "pipeline.layers_per_stage=[0,4,4]"}),
            (Delays{1, 1, 1, 1, 1, 0, 0, 0, 0, 0}))
      << "a stage with the embedding alone is as late as the first layer";
  EXPECT_EQ(own({"parallel.pp=1", "batch.global=1"}), Delays(10, 0));
  EXPECT_EQ(own({"parallel.pp=4", "batch.global=1", "pipeline.delays=[1,0]"}), (Delays{1, 1, 1, 1, 1, 0, 0, 0, 0, 0}));
}

TEST(Delays, TextHasTheFewestNumbers) {
  EXPECT_EQ(delays_text(*parsed({"pipeline.delays=[3,3,2,2,1,1,0,0]"}).config), "[3, 2, 1, 0]");
  EXPECT_EQ(delays_text(*parsed({"pipeline.schedule=pipedream", "parallel.pp=2"}).config), "[1, 0]");
  EXPECT_EQ(delays_text(*parsed({"pipeline.delays=[1,1]"}).config), "[1]");
  EXPECT_EQ(delays_text(*parsed({"pipeline.delays=[1,1,1,0,0,0,0,0]"}).config), "[1, 1, 1, 0, 0, 0, 0, 0]");
}

TEST(Delays, TheWholeInputRepeatsThem) {
  auto const first = parsed({"pipeline.schedule=pipedream", "parallel.pp=4", "batch.global=1", "batch.micro=1"});
  ASSERT_TRUE(first.config);
  auto const again = parse(canonical_toml(*first.config), {}, 0);
  ASSERT_TRUE(again.config) << format(again.errors);
  EXPECT_EQ(*again.config, *first.config);
  // Delays are those of the stages, whatever these become.
  auto const other = parse(canonical_toml(*first.config), {"parallel.pp=2"}, 0);
  ASSERT_TRUE(other.config) << format(other.errors);
  EXPECT_EQ(other.config->latest_delay(), 1);
}

TEST(Delays, WhatDoesNotFitIsRefused) {
  struct Case {
    std::vector<std::string> words;
    std::string key, expected, fix;
    std::string mended;  ///< words that the fix names
  };
  for (Case const& c : {
           Case{{"pipeline.delays=[1,0,0]"},
                "pipeline.delays",
                "divides",
                "give 2 or 4 numbers",
                "pipeline.delays=[1,0]"},
           {{"pipeline.delays=[1,16]"}, "pipeline.delays", "0 to 15", "", "pipeline.delays=[1,15]"},
           {{"pipeline.delays=2"}, "pipeline.delays", "list", "[3, 2, 1, 0]", "pipeline.delays=[2]"},
           {{"pipeline.delays=[1,0]", "optimizer.delay=2"},
            "optimizer.delay",
            "no delay for all layers",
            "remove optimizer.delay",
            "optimizer.delay=0"},
           {{"pipeline.delays=[1,0]", "model.tied_embeddings=true"},
            "model.tied_embeddings",
            "one delay",
            "set model.tied_embeddings to false",
            "model.tied_embeddings=false"},
           {{"pipeline.delays=[1,0]", "model.mtp.depth=1", "model.position=rope"},
            "model.mtp.depth",
            "one delay",
            "set model.mtp.depth to 0",
            "model.mtp.depth=0"},
           {{"pipeline.schedule=pipedream", "parallel.pp=2", "pipeline.layers_per_stage=cost"},
            "pipeline.layers_per_stage",
            "stages whose layers are known",
            "give pipeline.delays",
            "pipeline.delays=[1,0]"},
           {{"pipeline.schedule=pipedream", "parallel.pp=3", "batch.global=1", "batch.micro=1",
             "pipeline.layers_per_stage=[0,4,4]"},
            "pipeline.layers_per_stage",
            "a layer on the first and on the last stage",
            "give both ends a layer",
            "pipeline.layers_per_stage=[1,4,3]"},
           {{"pipeline.schedule=pipedream", "parallel.pp=2", "batch.global=1", "batch.micro=1",
             "pipeline.layers_per_stage=[8,0]"},
            "pipeline.layers_per_stage",
            "a layer on the first and on the last stage",
            "set pipeline.schedule to \"1f1b\" and pipeline.delays",
            "pipeline.schedule=1f1b"},
           {{"pipeline.schedule=pipedream", "parallel.pp=18", "model.layers=18", "batch.global=1", "batch.micro=1"},
            "pipeline.schedule",
            "late by at most 15 updates",
            "raise batch.microbatches",
            "batch.global=2"},
           {{"pipeline.schedule=pipedream", "parallel.pp=18", "model.layers=18", "batch.global=1", "batch.micro=1",
             "memory.preset=low"},
            "pipeline.schedule",
            "late by at most 15 updates",
            "lower parallel.pp",
            "parallel.pp=9"},
       }) {
    auto words = c.words;
    auto const result = parsed(words);
    ASSERT_EQ(result.errors.size(), 1U) << c.words.front() << "\n" << format(result.errors);
    EXPECT_EQ(result.errors.front().key, c.key);
    expect_contains(result.errors.front().expected, c.expected);
    expect_contains(result.errors.front().fix, c.fix);
    auto const name = c.mended.substr(0, c.mended.find('='));
    std::erase_if(words, [&](auto const& word) { return word.starts_with(name + "="); });
    words.push_back(c.mended);
    auto const mended = parsed(words);
    EXPECT_TRUE(mended.config) << format(mended.errors);
  }
}

}  // namespace
}  // namespace p3d::config::test
