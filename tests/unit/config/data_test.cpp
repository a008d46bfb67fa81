// SPDX-License-Identifier: Apache-2.0
// [[data.source]], and the rules of token files.

#include "support.hpp"

namespace p3d::config::test {
namespace {

std::string const here = P3D_SOURCE_DIR;

/// An input with these lines below [data].
std::string data(std::string const& lines) { return "[data]\n" + lines; }

KeyError error_of(std::string const& lines, std::vector<std::string> const& overrides = {}) {
  return only_error(parse(data(lines), overrides));
}

TEST(DataSource, TablesAndOverridesAreTheSame) {
  auto const tables =
      good(data("format = \"llmc\"\n[[data.source]]\npath = \"README.md\"\nweight = 2\n[[data.source]]\n"
                "path = \"LICENSE\"\n"));
  EXPECT_EQ(tables.data.source, (std::vector<DataSource>{{here + "/README.md", 2.0}, {here + "/LICENSE", 1.0}}));
  auto const override_text =
      "data.source=[{path='" + here + "/README.md', weight=2.0}, {path=\"" + here + "/LICENSE\"}]";
  EXPECT_EQ(good(data("format = \"llmc\"\n"), {override_text}), tables);
  expect_contains(canonical_toml(tables), "\nsource = [{path = \"" + here + "/README.md\", weight = 2.0}, {path = \"" +
                                              here + "/LICENSE\", weight = 1.0}]\n");
}

TEST(DataSource, SaysWhatIsWrongAndWhere) {
  auto const wrong = [](std::string const& table) { return error_of("format = \"text\"\n[[data.source]]\n" + table); };
  auto error = wrong("path = \"LICENSE\"\nwieght = 2\n");
  EXPECT_EQ(error.key, "data.source");
  EXPECT_EQ(error.where, "t.toml:5:10");
  expect_contains(error.found, "the key \"wieght\" of a source");
  EXPECT_EQ(error.fix, "did you mean weight?");
  expect_contains(wrong("weight = 2\n").found, "a source without path");
  expect_contains(wrong("path = \"LICENSE\"\nweight = 0\n").fix, "more than 0");
  expect_contains(wrong("path = \"LICENSE\"\nweight = \"x\"\n").found, "as weight of a source");
  expect_contains(wrong("path = 7\n").found, "as path of a source");
  error = wrong("path = \"LICENSE\"\n[[data.source]]\npath = \"nowhere\"\n");
  EXPECT_EQ(error.where, "t.toml:6:8");
  expect_contains(error.found, "/nowhere: no such file or folder");
  expect_contains(error_of("source = [\"LICENSE\"]\n").fix, "{path = ");
  expect_contains(error_of("format = \"text\"\n[data.source]\npath = \"LICENSE\"\n").fix, "double brackets");
  expect_contains(error_of("path = \"LICENSE\"\n[[data.source]]\npath = \"LICENSE\"\n").found, "both");
  expect_contains(error_of("format = \"synthetic\"\n[[data.source]]\npath = \"LICENSE\"\n").expected, "files");
}

TEST(DataSource, WeightsAreKeptExactlyOrRefused) {
  auto const sources = [](std::string const& weight) {
    return "format = \"text\"\n[[data.source]]\npath = \"LICENSE\"\n[[data.source]]\npath = \"README.md\"\nweight = " +
           weight + "\n";
  };
  EXPECT_NO_THROW(good(data(sources("0.001"))));
  auto const error = error_of(sources("1234567891234"));
  EXPECT_EQ(error.key, "data.source");
  expect_contains(error.fix, "round them, to 1, 1000000");
}

TEST(DataRules, WhatDependsOnTheFormat) {
  expect_contains(error_of("format = \"megatron\"\n").expected, "the token files to train on");
  expect_contains(error_of("format = \"npy\"\npath = \"LICENSE\"\nshuffle = \"documents\"\n").found,
                  "data.shuffle = \"documents\" with data.format = \"npy\"");
  expect_contains(
      error_of("format = \"megatron\"\npath = \"LICENSE\"\nshuffle = \"megatron\"\n", {"run.seed=4294967296"}).expected,
      "run.seed below 2^32");
  expect_contains(error_of("format = \"megatron\"\npath = \"nothing/here\"\n").found, "nothing/here: no such file");
}

TEST(DataRules, EndsOfDocuments) {
  expect_contains(error_of("path = \"LICENSE\"\neod_mask_loss = true\n").fix, "set data.eod_token");
  expect_contains(error_of("path = \"LICENSE\"\nreset_positions = true\n").fix, "data.reset_positions to false");
  expect_contains(error_of("path = \"LICENSE\"\neod_token = 256\n").found, "eod_token 256, vocab_size 256");
  EXPECT_EQ(good(data("path = \"LICENSE\"\neod_token = 10\neod_mask_loss = true\n")).data.eod_token, 10);
}

TEST(DataRules, PackingNeedsEndsOfDocuments) {
  auto const error = error_of("format = \"npy\"\npath = \"LICENSE\"\npack = true\nreset_positions = true\n");
  EXPECT_EQ(error.key, "data.pack");
  expect_contains(error.found, "eod_token -1, data.format = \"npy\"");
  expect_contains(error.fix, "set data.eod_token");
  expect_contains(error_of("format = \"synthetic\"\npack = true\n").found, "synthetic");
  EXPECT_TRUE(good(data("format = \"npy\"\npath = \"LICENSE\"\npack = true\neod_token = 1\n")).data.pack);
  EXPECT_TRUE(good(data("path = \"LICENSE\"\npack = true\neod_mask_loss = true\nreset_positions = true\n")).data.pack);
}

TEST(DataRules, VariableSamplesAreDocuments) {
  std::vector<std::string> const variable{"batch.variable=true"};
  auto const error = error_of("path = \"LICENSE\"\n", variable);
  EXPECT_EQ(error.key, "batch.variable");
  expect_contains(error.found, "batch.variable with data.shuffle = \"windows\"");
  expect_contains(error.fix, "set data.shuffle to \"documents\"");
  expect_contains(error_of("format = \"synthetic\"\n", variable).fix, "p3d data tokenize");
  std::string const documents = "format = \"megatron\"\npath = \"LICENSE\"\nshuffle = \"documents\"\n";
  EXPECT_TRUE(good(data(documents), variable).batch.variable);
  expect_contains(error_of(documents + "pack = true\n", variable).expected, "batch.variable or data.pack");
}

}  // namespace
}  // namespace p3d::config::test
