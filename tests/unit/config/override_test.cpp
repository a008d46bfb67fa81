// SPDX-License-Identifier: Apache-2.0
// The command line: precedence and forms of values.

#include "support.hpp"

#include <p3d/base/printable.hpp>

namespace p3d::config::test {
namespace {

TEST(Override, DefaultThenPresetThenFileThenCommandLine) {
  EXPECT_EQ(good("").model.layers, 2);
  EXPECT_EQ(good("[model]\npreset = \"gpt2-tiny\"\n").model.layers, 8);
  EXPECT_EQ(good("[model]\nlayers = 5\npreset = \"gpt2-tiny\"\n").model.layers, 5);
  EXPECT_EQ(good("[model]\nlayers = 5\npreset = \"gpt2-tiny\"\n", {"model.layers=6"}).model.layers, 6);
  EXPECT_EQ(good("[model]\nlayers = 5\n", {"model.layers=6", "model.preset=gpt2-tiny"}).model.layers, 6);
}

TEST(Override, ThePresetOfTheCommandLineReplacesTheFiles) {
  auto const config = good("[model]\npreset = \"gpt2-tiny\"\n", {"model.preset=llama-tiny"});
  EXPECT_EQ(config.model.preset, "llama-tiny");
  EXPECT_EQ(config.model.norm, Norm::rmsnorm);
  EXPECT_EQ(good("[model]\npreset = \"gpt2-tiny\"\n", {"model.preset="}).model.hidden, 64);
}

TEST(Override, TheLastOfTwoCounts) { EXPECT_EQ(good("", {"run.steps=3", "run.steps=4"}).run.steps, 4); }

TEST(Override, ValuesAreTomlOrBareWords) {
  auto const config = good(
      "", {"run.name=my run", "run.precision=fp64", "pipeline.schedule=gpipe", "sample.prompt=", "model.bias=false",
           "optimizer.lr=3e-4", "data.path=[\"a\", '/b']", "pipeline.layers_per_stage=[2]"});
  EXPECT_EQ(config.run.name, "my run");
  EXPECT_EQ(config.run.precision, Precision::fp64);
  EXPECT_EQ(config.pipeline.schedule, "gpipe");
  EXPECT_EQ(config.sample.prompt, "");
  EXPECT_FALSE(config.model.bias);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.data.path.at(1), "/b");
  EXPECT_EQ(config.pipeline.layers_per_stage, std::vector<int>{2});
  EXPECT_EQ(good("", {"pipeline.schedule=1f1b"}).pipeline.schedule, "1f1b");  // begins like a number
  EXPECT_EQ(good("", {"run.name=\"quoted\""}).run.name, "quoted");
  EXPECT_EQ(good("", {"run.name=a=b"}).run.name, "a=b");
}

// What TOML takes for a number, a truth value or a date, for keys that take nothing but text.
TEST(Override, BareWordsAreTextWhereTextIsWanted) {
  for (char const* word : {"2024", "1e3", "true", "1979-05-27", "-5", "0x1F"}) {
    auto const config = good("", {std::string("run.name=") + word, std::string("sample.prompt=") + word});
    EXPECT_EQ(config.run.name, word);
    EXPECT_EQ(config.sample.prompt, word);
  }
  EXPECT_EQ(good("[run]\nname = \"x\"\n", {"checkpoint.every=20", "checkpoint.resume=none"}).checkpoint.every, 20);
  EXPECT_EQ(only_error(parse("[run]\nname = 5\n", {})).found, "the integer 5");  // a file says what it means
}

TEST(Override, OverridesAlone) {
  auto const result = parse_file("", {"data.format=synthetic", "parallel.tp=2"}, 2);
  ASSERT_TRUE(result.config) << format(result.errors);
  EXPECT_EQ(result.config->parallel.tp, 2);
}

struct OverrideCase {
  char const* text;
  char const* key;
  char const* found;
  char const* fix;
};

class BadOverride : public testing::TestWithParam<OverrideCase> {};

TEST_P(BadOverride, GivesOneError) {
  auto const& c = GetParam();
  auto const error = only_error(parse("", {c.text}));
  EXPECT_EQ(error.key, c.key);
  EXPECT_EQ(error.where, "command line: " + base::printable_line(c.text));
  expect_contains(error.found, c.found);
  expect_contains(error.fix, c.fix);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BadOverride,
    testing::Values(
        OverrideCase{"other.toml", "other.toml", "other.toml", "one input file"},
        OverrideCase{"run.steps", "run.steps", "run.steps", "run.steps=VALUE"},
        OverrideCase{"run.stps=3", "run.stps", "run.stps", "did you mean run.steps?"},
        OverrideCase{"runn.steps=3", "runn.steps", "runn.steps", "did you mean run.steps?"},
        OverrideCase{"steps=3", "steps", "steps", "did you mean run.steps?"},
        OverrideCase{"modl.hiden=3", "modl.hiden", "modl.hiden", "did you mean model.hidden?"},
        OverrideCase{"qqq.zz=3", "qqq.zz", "qqq.zz", "--help-input"}, OverrideCase{"=3", "", "", "--help-input"},
        OverrideCase{"run.steps=ten", "run.steps", "the string \"ten\"", "write an integer"},
        OverrideCase{"run.steps=", "run.steps", "an empty string", "write an integer"},
        OverrideCase{"run.steps=010", "run.steps", "the string \"010\"", "write 10"},
        OverrideCase{"run.seed=18446744073709551615", "run.seed", "18446744073709551615, too large an integer",
                     "set it to 9223372036854775807 or less"},
        OverrideCase{"run.steps=-18446744073709551616", "run.steps", "-18446744073709551616, too small an integer",
                     "set it to 1 or more"},
        OverrideCase{"run.seed=\"9223372036854775807\"", "run.seed", "the string \"9223372036854775807\"", "write"},
        OverrideCase{"run.steps=1e2", "run.steps", "the number 100.0", "write 100"},
        OverrideCase{"optimizer.lr=.5", "optimizer.lr", "the string \".5\"", "write 0.5"},
        OverrideCase{"model.bias=True", "model.bias", "the string \"True\"", "lower case"},
        OverrideCase{"run.steps=true", "run.steps", "the boolean true", "write an integer"},
        OverrideCase{"run.name=[5]", "run.name", "a list of 1", "single quotes"},
        OverrideCase{"run.name=\"abc", "run.name", "\"abc, which is not a TOML value", "close quotes"},
        OverrideCase{"run.name=\xff", "run.name", "not a TOML value", "close quotes"},
        OverrideCase{"pipeline.layers_per_stage=[1,", "pipeline.layers_per_stage", "not a TOML value", "brackets"},
        OverrideCase{"model.preset=gpt2-tny", "model.preset", "\"gpt2-tny\"", "did you mean \"gpt2-tiny\"?"}));

TEST(Override, ALineBreakSmugglesNothingIn) {
  EXPECT_EQ(only_error(parse("", {"run.name=\"a\"\nw = 3"})).key, "run.name");
  auto const error = only_error(parse("", {"run.steps=3\nw = 3"}));
  EXPECT_EQ(error.where, "command line: run.steps=3\\nw = 3");
}

TEST(Override, AErrorOfTheFileStaysOneWhenOverridden) {
  EXPECT_EQ(only_error(parse("[run]\nsteps = \"3\"\n", {"run.steps=4"})).where, "t.toml:2:9");
}

}  // namespace
}  // namespace p3d::config::test
