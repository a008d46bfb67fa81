// SPDX-License-Identifier: Apache-2.0
// Reading a trained model: whatever keys its run had, the input for reading is one that p3d accepts, on any ranks.

#include "support.hpp"

#include <p3d/config/reading.hpp>

#include <map>
#include <random>
#include <sstream>

namespace p3d::config::test {
namespace {

/// "section.key" -> value, of canonical text.
std::map<std::string, std::string> values(std::string const& toml) {
  std::map<std::string, std::string> out;
  std::istringstream in(toml);
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('['))
      section = line.substr(1, line.size() - 2);
    else if (auto const equals = line.find(" = "); equals != line.npos)
      out[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return out;
}

Config stored(Config const& run) {
  auto const result = parse_stored(canonical_toml(run));
  EXPECT_TRUE(result.config) << format(result.errors);
  return result.config.value_or(Config{});
}

/// All ways in which the commands read, which must be accepted, with the model as it was.
void expect_readable(Config const& run) {
  auto const there = stored(run);
  std::vector<Reading> ways(3);
  ways[1].ranks = there.num_ranks();
  ways[2].data = own_data(there);
  ways[2].variable = there.batch.variable;
  for (auto const& wanted : ways) {
    auto const result = reading_input(there, wanted);
    ASSERT_TRUE(result.config) << format(result.errors) << canonical_toml(run);
    auto model = result.config->model;
    model.preset = run.model.preset;
    model.load = run.model.load;
    model.moe.dispatch = run.model.moe.dispatch;
    model.moe.buffer_factor = run.model.moe.buffer_factor;
    ASSERT_EQ(model, run.model);
    ASSERT_EQ(result.config->run.precision, run.run.precision);
    ASSERT_EQ(result.config->num_ranks(), wanted.ranks);
  }
}

// A text may be shorter than what blocks of multi-token prediction look ahead.
TEST(Reading, FewTokensOfAModelThatPredictsMore) {
  auto const run = good("", {"model.preset=llama-tiny", "model.mtp.depth=3", "data.format=synthetic"});
  Reading wanted;
  wanted.seq_len = 2;
  auto const result = reading_input(stored(run), wanted);
  ASSERT_TRUE(result.config) << format(result.errors);
  EXPECT_EQ(result.config->model.seq_len, 2);
  EXPECT_EQ(result.config->model.mtp, run.model.mtp);
}

TEST(Reading, ARunWithAnyKey) {
  for (auto const& key : changed_keys()) {
    SCOPED_TRACE(key);
    ASSERT_NO_FATAL_FAILURE(expect_readable(good(change_base(), change_of(key))));
  }
}

/// Contradictions need two keys or more: of these draws those count that training accepts.
TEST(Reading, ARunWithAnyKeysTogether) {
  auto const keys = changed_keys();
  std::mt19937 random(35);
  int accepted = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    std::vector<std::string> overrides;
    for (auto n = 2 + random() % 8; n > 0; --n) {
      auto const change = change_of(keys[random() % keys.size()]);
      overrides.insert(overrides.end(), change.begin(), change.end());
    }
    auto const run = parse(change_base(), overrides);
    if (!run.config) continue;
    ++accepted;
    SCOPED_TRACE(draw);
    ASSERT_NO_FATAL_FAILURE(expect_readable(*run.config));
  }
  EXPECT_GT(accepted, 500);
}

TEST(Reading, LeavesTrainingAtItsDefaults) {
  auto const defaults = values(canonical_toml(good("")));
  for (auto const& key : changed_keys()) {
    auto const run = good(change_base(), change_of(key));
    auto const result = reading_input(stored(run), {});
    ASSERT_TRUE(result.config) << key;
    auto const found = values(canonical_toml(*result.config));
    for (auto const& [name, value] : found) {
      bool const of_model = name.starts_with("model.") || name.starts_with("run.") || name.starts_with("batch.") ||
                            name.starts_with("precision.") || name.starts_with("context.") || name == "data.split" ||
                            name == "checkpoint.dir" || name == "optimizer.type" || name == "linalg.host" ||
                            name == "parallel.order";
      if (!of_model) {
        EXPECT_EQ(value, defaults.at(name)) << key << ": " << name;
      }
    }
  }
}

TEST(Reading, InAnotherLayoutAndPrecision) {
  auto const run = stored(good("[model]\nposition = \"rope\"\nseq_len = 32768\n[batch]\nmicro = 4\n",
                               {"parallel.pp=2", "run.precision=fp64", "context.order=striped"}));
  auto const with = [&](int ranks, std::vector<std::string> const& layout) {
    Reading wanted;
    wanted.ranks = ranks;
    wanted.layout = layout;
    return reading_input(run, wanted);
  };
  auto c = with(6, {"parallel.tp=2"}).config.value();
  EXPECT_EQ(c.parallel.dp * 10 + c.parallel.tp, 32);
  EXPECT_EQ(c.parallel.pp, 1);
  EXPECT_EQ(with(2, {}).config.value().parallel.pp, 2);
  EXPECT_EQ(with(3, {}).config.value().parallel.dp, 3);
  EXPECT_EQ(with(4, {"parallel.cp=2", "parallel.order=cp-dp"}).config.value().parallel.order, "cp-dp");
  EXPECT_EQ(with(3, {"parallel.pp=3"}).config.value().pipeline.layer_split, LayerSplit::cost);  // 2 layers
  auto const error = only_error(with(3, {"parallel.tp=2"}));
  expect_contains(error.where, "command line: parallel.tp=2");
  Reading wanted;
  wanted.precision = Precision::fp32;
  wanted.seq_len = 4096;
  c = reading_input(run, wanted).config.value();
  EXPECT_EQ(c.run.precision, Precision::fp32);
  EXPECT_EQ(c.precision.moments, Precision::fp32);
  EXPECT_EQ(c.model.seq_len, 4096);
  EXPECT_EQ(c.batch.micro, 4);
  EXPECT_EQ(reading_input(run, {}).config.value().batch.micro, 1);  // of 32,768 tokens
}

TEST(Reading, ExpertsOnRanksOfTp) {
  auto const run = stored(good("", {"model.moe.experts=4", "parallel.tp=2", "parallel.ep=2", "parallel.sequence=true",
                                    "comm.overlap_experts=true", "model.moe.capacity_factor=1.5"}));
  Reading wanted;
  wanted.ranks = 2;
  EXPECT_EQ(reading_input(run, wanted).config.value().parallel.ep, 2);
  wanted.layout = {"parallel.tp=2"};
  auto const c = reading_input(run, wanted).config.value();
  EXPECT_TRUE(c.parallel.sequence);
  EXPECT_EQ(c.parallel.ep, 1);
  wanted.layout = {"parallel.cp=2"};
  EXPECT_EQ(reading_input(run, wanted).config.value().context.order, ContextOrder::contiguous);
}

}  // namespace
}  // namespace p3d::config::test
