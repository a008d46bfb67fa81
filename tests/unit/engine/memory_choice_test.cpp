// SPDX-License-Identifier: Apache-2.0
// memory.limit: what is chosen fits, is shown as keys, and leaves what the input says alone.

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/memory_choice.hpp>
#include <p3d/engine/run_plan.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace p3d;

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

config::Config input(std::vector<std::string> more) {
  more.insert(more.end(), {"data.format=synthetic", "model.preset=gpt2-124m", "model.seq_len=256"});
  auto result = config::parse_text("", "test", "", more, 4);
  if (!result.config) throw std::runtime_error(config::format(result.errors));
  return *result.config;
}

double most(config::Config const& c) {
  double bytes = 0;
  for (auto const& m : engine::make_run_plan(c).memory) bytes = std::max(bytes, static_cast<double>(m.total()));
  return bytes / gib;
}

TEST(MemoryChoice, WithoutALimitNothingIsChosen) {
  auto const c = input({});
  auto const choice = engine::choose_memory(c);
  EXPECT_EQ(choice.config, c);
  EXPECT_EQ(choice.note, "");
}

TEST(MemoryChoice, WhatFitsAnywayStaysAsItIs) {
  auto const choice = engine::choose_memory(input({"memory.limit=100"}));
  EXPECT_EQ(choice.config.memory.recompute, config::Recompute::none);
  EXPECT_EQ(choice.config.memory.shard, config::Shard::none);
  EXPECT_EQ(choice.config.memory.offload_optimizer, config::OffloadTo::none);
  EXPECT_NE(choice.note.find("next:"), std::string::npos) << choice.note;
}

void fits_every_limit(std::vector<std::string> const& keys, bool post_validation = false) {
  auto const with = [&](std::string const& limit) {
    auto more = keys;
    more.insert(more.end(), {"memory.limit=" + limit, fmt::format("optimizer.post_validation={}", post_validation)});
    return input(more);
  };
  std::string smallest;
  for (double limit = most(input(keys)); smallest.empty(); limit *= 0.8) {
    auto const c = with(fmt::format("{}", limit));
    try {
      auto const choice = engine::choose_memory(c);
      EXPECT_LE(most(choice.config), limit);
      // The keys are in the resolved input, which repeats the run.
      auto const again = config::parse_text(config::canonical_toml(choice.config), "resolved", "", {}, 4);
      ASSERT_TRUE(again.config);
      EXPECT_EQ(engine::choose_memory(*again.config).config.memory, choice.config.memory);
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_EQ(e.text().where, "memory.limit");
      std::string const words = "set memory.limit to ";
      auto const at = e.text().fix.find(words);
      ASSERT_NE(at, std::string::npos) << e.text().fix;
      smallest = e.text().fix.substr(at + words.size());
      smallest = smallest.substr(0, smallest.find(' '));
    }
  }
  auto const least = engine::choose_memory(with(smallest)).config;
  EXPECT_LE(most(least), std::stod(smallest));
  EXPECT_GT(most(least), 0.99 * std::stod(smallest));
  // Updates that may be taken back need their state in memory.
  EXPECT_EQ(least.memory.offload_optimizer, post_validation ? config::OffloadTo::none : config::OffloadTo::disk);
}

TEST(MemoryChoice, FitsEveryLimitDownToTheSmallest) {
  fits_every_limit({});
  fits_every_limit({}, true);
}

// Prices are those of 2 parallel.pp microbatches; what is chosen, or named, fits with all of them.
TEST(MemoryChoice, FitsEveryLimitWithMoreMicrobatchesThanArePriced) {
  fits_every_limit({"parallel.pp=2", "batch.microbatches=9", "pipeline.schedule=1f1b"});
  fits_every_limit({"parallel.pp=2", "batch.microbatches=9", "pipeline.schedule=interleaved_1f1b"});
}

// A file that gathers weights is a schedule of divided ones: candidates with whole ones are refused, and others stay.
TEST(MemoryChoice, DropsWhatCannotBePlanned) {
  auto const path = testing::TempDir() + "memory_choice_divided.csv";
  std::ofstream(path) << "0GATHER,0F0,0B0,0RELEASE,0REDUCE_SCATTER,STEP\n";
  std::vector<std::string> const keys{"memory.limit=100", "pipeline.schedule=file", "pipeline.file=" + path};
  EXPECT_NE(engine::choose_memory(input(keys)).config.memory.shard, config::Shard::none);
  auto whole = keys;
  whole.push_back("memory.shard=none");
  try {
    engine::choose_memory(input(whole));
    ADD_FAILURE() << "nobody divides these weights";
  } catch (base::Error const& e) {
    // Where none is left, the first refusal says why.
    EXPECT_EQ(e.text().where, "the schedule (pipeline.file)");
  }
}

// Weights that come, and gradients that are summed, for each microbatch: the smallest that a memory may be. A key that
// the input gives stays.
TEST(MemoryChoice, GathersAndReducesForEachMicrobatch) {
  auto const with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"memory.recompute=full", "memory.offload_optimizer=none", "memory.offload_parameters=none",
                             "memory.offload_activations=none", "batch.microbatches=4"});
    return input(more);
  };
  double const least = most(with({"memory.shard=parameters", "memory.gather=microbatch", "memory.reduce=microbatch"}));
  auto const limit = fmt::format("memory.limit={}", 1.001 * least);
  auto const choice = engine::choose_memory(with({limit}));
  EXPECT_EQ(choice.config.memory.shard, config::Shard::parameters);
  EXPECT_EQ(choice.config.memory.gather, config::MessageEvery::microbatch);
  EXPECT_EQ(choice.config.memory.reduce, config::MessageEvery::microbatch);
  EXPECT_NE(choice.note.find("gather = \"microbatch\", reduce = \"microbatch\""), std::string::npos) << choice.note;
  EXPECT_LE(most(choice.config), 1.001 * least);
  for (auto const* key : {"memory.reduce=step", "memory.gather=step"}) {
    auto const keys = std::vector<std::string>{limit, key, "memory.shard=parameters"};
    EXPECT_THROW(engine::choose_memory(with(keys)), base::Error) << key;
  }
  // Of shard alone, as before: where it is given, what travels with it is chosen.
  auto const given = engine::choose_memory(with({limit, "memory.shard=parameters"}));
  EXPECT_EQ(given.config.memory.reduce, config::MessageEvery::microbatch);
  // Room enough: once a step.
  auto const roomy = engine::choose_memory(with({"memory.limit=100", "memory.shard=parameters"}));
  EXPECT_EQ(roomy.config.memory.gather, config::MessageEvery::step);
  EXPECT_EQ(roomy.config.memory.reduce, config::MessageEvery::step);
}

TEST(MemoryChoice, LeavesWhatTheInputSays) {
  double const whole = most(input({}));
  auto const choice = engine::choose_memory(
      input({fmt::format("memory.limit={}", 0.8 * whole), "memory.shard=none", "memory.recompute=none"}));
  EXPECT_EQ(choice.config.memory.shard, config::Shard::none);
  EXPECT_EQ(choice.config.memory.recompute, config::Recompute::none);
  EXPECT_EQ(choice.config.memory.offload_optimizer, config::OffloadTo::disk);
  auto const automatic = engine::choose_memory(input({fmt::format("memory.limit={}", 0.97 * whole), "memory.shard=none",
                                                      "memory.recompute=auto", "memory.offload_optimizer=none"}));
  EXPECT_NE(automatic.config.memory.recompute, config::Recompute::automatic);
  EXPECT_NE(automatic.config.memory.recompute, config::Recompute::none);
  EXPECT_LE(most(automatic.config), 0.97 * whole);
}

// Activations wait on a disk only where nothing else would fit.
TEST(MemoryChoice, OffloadsActivationsLast) {
  std::vector<std::string> const pipeline{"parallel.pp=4",        "pipeline.schedule=1f1b",
                                          "batch.microbatches=8", "memory.recompute=none",
                                          "memory.shard=none",    "memory.offload_optimizer=none"};
  auto const with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), pipeline.begin(), pipeline.end());
    return input(more);
  };
  double const kept = most(with({})), waiting = most(with({"memory.offload_activations=disk"}));
  ASSERT_LT(waiting, 0.95 * kept);
  auto const roomy = engine::choose_memory(with({fmt::format("memory.limit={}", kept)}));
  EXPECT_EQ(roomy.config.memory.offload_activations, config::OffloadTo::none);
  auto const tight = engine::choose_memory(with({fmt::format("memory.limit={}", 0.5 * (kept + waiting))}));
  EXPECT_EQ(tight.config.memory.offload_activations, config::OffloadTo::disk);
  EXPECT_NE(tight.note.find("offload_activations = \"disk\""), std::string::npos) << tight.note;
  EXPECT_THROW(
      engine::choose_memory(with({fmt::format("memory.limit={}", kept - 0.001), "memory.offload_activations=none"})),
      base::Error);
}

// What the rules between keys refuse is not tried, nor chosen.
TEST(MemoryChoice, KeepsToTheRulesBetweenKeys) {
  std::vector<std::vector<std::string>> const inputs{
      {"parallel.pp=4", "pipeline.vocab_parallel=true"},
      {"parallel.pp=2", "pipeline.vocab_parallel=true", "parallel.dp=2", "pipeline.schedule=zb_v"},
      {"precision.moments=bf16"},
      {"model.moe.experts=4", "model.moe.bias_update_rate=0.001"},
      {"model.moe.experts=4", "model.moe.aux_loss=global"},
      {"optimizer.type=sgd"}};
  for (auto const& keys : inputs) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
    int chosen = 0;
    for (double limit = most(input(keys));; limit *= 0.8) {
      auto more = keys;
      more.push_back(fmt::format("memory.limit={}", limit));
      try {
        auto const choice = engine::choose_memory(input(more));
        EXPECT_LE(most(choice.config), limit);
        auto const again = config::parse_text(config::canonical_toml(choice.config), "resolved", "", {}, 4);
        EXPECT_TRUE(again.config) << config::format(again.errors);
        ++chosen;
      } catch (base::Error const& e) {
        EXPECT_EQ(e.code(), base::ExitCode::bad_input);
        EXPECT_EQ(e.text().where, "memory.limit") << e.what();
        break;
      }
    }
    EXPECT_GE(chosen, 2);
  }
}

}  // namespace
