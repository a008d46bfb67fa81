// SPDX-License-Identifier: Apache-2.0
// The keys of [checkpoint] and run.time_limit.

#include "support.hpp"

namespace p3d::config::test {
namespace {

std::string const base_text = "[data]\nformat = \"synthetic\"\n";

TEST(CheckpointKeys, EveryIsStepsOrTime) {
  auto const by_default = good(base_text).checkpoint;
  EXPECT_TRUE(by_default.on());
  EXPECT_FALSE(by_default.between_steps());
  EXPECT_EQ(by_default, good(base_text, {"checkpoint.every=end"}).checkpoint);
  EXPECT_FALSE(good(base_text, {"checkpoint.every=0"}).checkpoint.on());
  EXPECT_EQ(good("[checkpoint]\nevery = 0\n" + base_text, {"checkpoint.every=end"}).checkpoint, by_default);
  EXPECT_EQ(good("[checkpoint]\nevery = \"30min\"\n" + base_text, {"checkpoint.every=end"}).checkpoint, by_default);
  auto const steps = good(base_text, {"checkpoint.every=25"}).checkpoint;
  EXPECT_EQ(steps.every, 25);
  EXPECT_EQ(steps.period.seconds, 0);
  EXPECT_TRUE(steps.on());
  struct Case {
    char const* text;
    std::int64_t seconds;
    char const* back;
  };
  for (auto const& c : {Case{"90s", 90, "90s"}, Case{"30min", 1800, "30min"}, Case{"120min", 7200, "2h"},
                        Case{"1.5h", 5400, "90min"}}) {
    auto const config = good(base_text, {std::string("checkpoint.every=\"") + c.text + '"'});
    EXPECT_EQ(config.checkpoint.period.seconds, c.seconds) << c.text;
    EXPECT_EQ(config.checkpoint.every, 0);
    EXPECT_TRUE(config.checkpoint.on());
    EXPECT_EQ(to_string(config.checkpoint.period), c.back);
  }
  for (char const* text : {"-1", "\"30\"", "\"0s\"", "\"-3s\"", "\"5 weeks\"", "\"min\"", "\"1e9h\"", "1.5", "\"0.5s\"",
                           "true", "\"END\"", "\"\""}) {
    auto const result = parse_text(base_text, "t", "/", {std::string("checkpoint.every=") + text}, 1);
    ASSERT_EQ(result.errors.size(), 1u) << text;
    EXPECT_EQ(result.errors[0].key, "checkpoint.every");
    EXPECT_NE(result.errors[0].fix.find("write \"end\", a number of steps"), std::string::npos);
  }
}

TEST(CheckpointKeys, TimeLimit) {
  EXPECT_EQ(good(base_text).run.time_limit.seconds, 0);
  EXPECT_EQ(good(base_text, {"run.time_limit=\"\""}).run.time_limit.seconds, 0);
  EXPECT_EQ(good(base_text, {"run.time_limit=2h"}).run.time_limit.seconds, 7200);
  EXPECT_FALSE(parse_text(base_text, "t", "/", {"run.time_limit=7200"}, 1).config);
}

TEST(CheckpointKeys, AFileMayTakeAsLongAsAWait) {
  EXPECT_EQ(good(base_text).run.file_timeout_s, 1800);
  EXPECT_EQ(good(base_text, {"comm.timeout_s=20"}).run.file_timeout_s, 1800);
  EXPECT_EQ(good(base_text, {"comm.timeout_s=7200"}).run.file_timeout_s, 7200);
  EXPECT_EQ(good(base_text, {"comm.timeout_s=7200", "run.file_timeout_s=30"}).run.file_timeout_s, 30);
  EXPECT_FALSE(parse_text(base_text, "t", "/", {"run.file_timeout_s=0"}, 1).config);
}

TEST(CheckpointKeys, TheFolderFollowsTheOutputFolder) {
  EXPECT_EQ(good(base_text, {"run.output_dir=/x/y"}).checkpoint.dir, "/x/y/checkpoints");
  EXPECT_EQ(good(base_text, {"run.output_dir=/x/y", "checkpoint.dir=/z"}).checkpoint.dir, "/z");
}

TEST(CheckpointKeys, ResumeAndLoad) {
  EXPECT_EQ(good(base_text).checkpoint.resume, "auto");
  auto const error = [](std::vector<std::string> overrides) {
    auto const result = parse_text(base_text, "t", "/", overrides, 1);
    return result.errors.size() == 1 ? result.errors[0].key + ": " + result.errors[0].found : format(result.errors);
  };
  EXPECT_EQ(error({"checkpoint.resume=/no/such.h5"}), "checkpoint.resume: no file /no/such.h5");
  EXPECT_EQ(error({"checkpoint.resume=/"}), "checkpoint.resume: no file /: it is a folder");
  EXPECT_EQ(error({"checkpoint.load=weights"}), "checkpoint.load: resume = \"auto\"");
  EXPECT_EQ(error({"run.name=a/b"}), "run.name: \"a/b\"");
  EXPECT_EQ(error({"checkpoint.at_start=true", "checkpoint.every=0"}), "checkpoint.at_start: checkpoint.every = 0");
}

}  // namespace
}  // namespace p3d::config::test
