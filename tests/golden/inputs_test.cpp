// SPDX-License-Identifier: Apache-2.0
// The golden inputs as p3d itself understands them: accepted without an error, with the same parameter table and the
// same places in the data as the independent implementation. When this fails, look here before looking at losses.
#include "reference.hpp"

#include <p3d/config/parse.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/layout/params.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace p3d::golden {
namespace {

std::string const folder = std::string(P3D_SOURCE_DIR) + "/tests/golden/";

class GoldenInput : public ::testing::TestWithParam<char const*> {
protected:
  void SetUp() override {
    auto const result = config::parse_file(folder + GetParam() + ".toml", {}, 1);
    ASSERT_TRUE(result.config.has_value()) << config::format(result.errors);
    config = *result.config;
    reference = read_reference(folder + GetParam() + ".reference.txt");
  }
  config::Config config;
  Reference reference;
};

TEST_P(GoldenInput, AsksForTheRunOfTheReference) {
  EXPECT_EQ(config.run.precision, config::Precision::fp64);
  auto const recorded = static_cast<std::int64_t>(reference.steps.size());
  EXPECT_EQ(config.run.steps, recorded + 1);
  EXPECT_EQ(recorded * config.batch.global, static_cast<std::int64_t>(reference.samples.size()));
  EXPECT_EQ(config.model.dropout, 0.0);
}

TEST_P(GoldenInput, HasTheSameParameterTable) {
  auto const table = layout::make_param_table(config);
  ASSERT_EQ(table.specs().size(), reference.parameters.size());
  for (std::size_t i = 0; i < reference.parameters.size(); ++i) {
    auto const& spec = table.specs()[i];
    Parameter const& expected = reference.parameters[i];
    EXPECT_EQ(spec.name, expected.name) << "row " << i;
    EXPECT_EQ(spec.rows, expected.rows) << expected.name;
    EXPECT_EQ(spec.cols, expected.cols) << expected.name;
    EXPECT_EQ(spec.decay, expected.rows > 1) << expected.name;
  }
}

TEST_P(GoldenInput, ReadsTheSameTokens) {
  auto const source = data::make_token_source(config);
  data::Sampler const sampler(*source, config);
  std::string const text = read_bytes(std::string(P3D_SOURCE_DIR) + "/LICENSE");
  auto const length = static_cast<std::size_t>(sampler.seq_len());
  std::vector<int> inputs(length), targets(length);
  for (std::size_t g = 0; g < reference.samples.size(); ++g) {
    Sample const& place = reference.samples[g];
    EXPECT_EQ(sampler.epoch(static_cast<std::int64_t>(g)), place.epoch) << "sample " << g;
    sampler.train(static_cast<std::int64_t>(g), inputs, targets);
    auto const first = text.begin() + place.start;
    EXPECT_EQ(inputs, std::vector<int>(first, first + sampler.seq_len())) << "sample " << g;
    EXPECT_EQ(targets, std::vector<int>(first + 1, first + 1 + sampler.seq_len())) << "sample " << g;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenInput, ::testing::Values("gpt2", "llama"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
}  // namespace p3d::golden
