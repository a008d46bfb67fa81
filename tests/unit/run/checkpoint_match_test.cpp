// SPDX-License-Identifier: Apache-2.0
// What a run makes of the position of a checkpoint in the data, above all of files that an older p3d wrote.

#include <p3d/run/checkpoint.hpp>

#include <support/tiny.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace {

using namespace p3d;

config::Config input(test::Keys const& keys) {
  return test::config_of(
      test::joined({{"data.format=megatron", "data.path=/", "model.seq_len=16", "batch.global=8"}, keys}), 1);
}

/// What forbids to go on from step 5 of a run of `there`, as the lines of the message.
std::string forbidden(config::Config const& there, config::Config const& here, std::int64_t order,
                      std::int64_t tokens) {
  auto header = run::checkpoint_header(there, 5, 7, "", {}, {});
  header.data_order = order;
  header.tokens = tokens;
  return fmt::format("{}", fmt::join(run::compare(header, here, config::Load::all, 7, {}).forbidden, "\n"));
}

constexpr std::int64_t full = 5 * 8 * 16;

TEST(CheckpointMatch, DocumentsOfAnOlderProgramAreWholeDocuments) {
  auto const mixed = input({"data.shuffle=documents"}), whole = input({"data.shuffle=whole_documents"}),
             windows = input({"data.shuffle=windows"});
  EXPECT_EQ(forbidden(mixed, mixed, 2, full), "");
  EXPECT_EQ(forbidden(whole, whole, 2, full), "");
  EXPECT_EQ(forbidden(mixed, whole, 1, full), "");
  EXPECT_EQ(forbidden(windows, windows, 1, full), "");
  EXPECT_EQ(forbidden(mixed, mixed, 1, full),
            "data.shuffle: \"whole_documents\" in the checkpoint (there named \"documents\", as its p3d had no other), "
            "\"documents\" in the input");
  EXPECT_EQ(forbidden(mixed, whole, 2, full),
            "data.shuffle: \"documents\" in the checkpoint, \"whole_documents\" in "
            "the input");
}

/// Keys that are younger than the file have the values that followed from its other keys.
TEST(CheckpointMatch, OlderFilesHaveHeadsOfHiddenOverHeadsAndOneKindOfBias) {
  auto const plain = input({"model.hidden=48", "model.heads=4", "model.bias=false"});
  auto header = run::checkpoint_header(plain, 5, 7, "", {}, {});
  auto const lines = [&](config::Config const& here) {
    return fmt::format("{}", fmt::join(run::compare(header, here, config::Load::all, 7, {}).forbidden, "\n"));
  };
  for (std::string const key : {"\nhead_dim = 12\n", "\nqkv_bias = false\n"}) {
    auto const at = header.input.find(key);
    ASSERT_NE(at, std::string::npos) << header.input;
    header.input.erase(at, key.size() - 1);
  }
  EXPECT_EQ(lines(plain), "");
  EXPECT_EQ(lines(input({"model.hidden=48", "model.heads=4", "model.bias=false", "model.head_dim=10"})),
            "model.head_dim: 12 in the checkpoint, 10 in the input");
  EXPECT_EQ(lines(input({"model.hidden=48", "model.heads=4", "model.bias=false", "model.qkv_bias=true"})),
            "model.qkv_bias: false in the checkpoint, true in the input");
}

/// The rate of biases of the choice is of training; whether there are any is of the model.
TEST(CheckpointMatch, ARateMayChangeWhereThereAreBiases) {
  auto const with = [](test::Keys const& keys) { return input(test::joined({{"model.moe.experts=4"}, keys})); };
  auto const moving = with({"model.moe.bias_update_rate=0.01"}), plain = with({}),
             constant = with({"model.moe.choice_bias=true"});
  EXPECT_EQ(forbidden(moving, constant, 2, full), "");
  EXPECT_EQ(forbidden(constant, moving, 2, full), "");
  EXPECT_EQ(forbidden(moving, plain, 2, full), "model.moe.choice_bias: true in the checkpoint, false in the input");
  // An older file does not have the key: there a rate said it.
  for (auto const& [file, is] : {std::pair{moving, "true"}, {plain, "false"}}) {
    auto header = run::checkpoint_header(file, 5, 7, "", {}, {});
    auto const key = fmt::format("\nchoice_bias = {}\n", is);
    auto const at = header.input.find(key);
    ASSERT_NE(at, std::string::npos);
    header.input.erase(at, key.size() - 1);
    EXPECT_EQ(run::compare(header, file, config::Load::all, 7, {}).forbidden.size(), 0u);
    EXPECT_EQ(run::compare(header, constant, config::Load::all, 7, {}).forbidden.empty(), is == std::string("true"));
  }
}

TEST(CheckpointMatch, CountsTokensOfShortSamples) {
  auto const fixed = input({"data.shuffle=whole_documents"}),
             variable = input({"data.shuffle=whole_documents", "batch.variable=true"});
  auto const wrong = [](std::string const& text) { return text.starts_with("position in the data: step 5, 40 "); };
  EXPECT_TRUE(wrong(forbidden(fixed, fixed, 2, full - 1)));
  EXPECT_EQ(forbidden(variable, variable, 2, full), "");
  EXPECT_EQ(forbidden(variable, variable, 2, full - 7), "");
  EXPECT_TRUE(wrong(forbidden(variable, variable, 2, full + 1)));
  EXPECT_TRUE(wrong(forbidden(variable, variable, 2, 39)));
  // An older file counts every sample as one of full length.
  EXPECT_EQ(forbidden(variable, variable, 1, full), "");
  EXPECT_TRUE(wrong(forbidden(variable, variable, 1, full - 7)));
}

}  // namespace
