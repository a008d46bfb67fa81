// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies against those of Hugging Face transformers, 5.23 in float (LlamaRotaryEmbedding(config).inv_freq)
// and 5.24 in double (tests/golden/make_rope.py), and against closed forms.

#include <p3d/layout/rope.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>
#include <sstream>
#include <string>

namespace p3d::layout {
namespace {

config::Model model_of(std::int64_t head_dim, double theta) {
  config::Model m;
  m.heads = 4;
  m.hidden = 4 * head_dim;
  m.position = config::Position::rope;
  m.rope_theta = theta;
  return m;
}

void expect_same(config::Model const& m, std::vector<double> const& expected) {
  auto const made = rope_frequencies(m);
  ASSERT_EQ(made.size(), expected.size());
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i] / expected[i], 1.0, 1e-6) << i;
}

TEST(Rope, PlainFrequenciesAreThoseOfTransformers) {
  expect_same(model_of(16, 1e4), {1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786,
                                  0.00100000005, 0.000316227786});
}

TEST(Rope, APartOfAHeadHasTheFrequenciesOfAHeadOfThatWidth) {
  auto part = model_of(24, 1e4);
  part.rope_fraction = 0.7;  // 16.8 dimensions
  EXPECT_EQ(part.rotary_dim(), 16);
  EXPECT_EQ(rope_frequencies(part), rope_frequencies(model_of(16, 1e4)));
}

TEST(Rope, LinearScalingIsThatOfTransformers) {
  auto m = model_of(16, 1e4);
  m.rope_scaling = config::RopeScaling::linear;
  m.rope_scaling_factor = 4.0;
  expect_same(m, {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012,
                  7.90569466e-05});
}

/// The values of Llama 3.1.
TEST(Rope, Llama3ScalingIsThatOfTransformers) {
  auto m = model_of(32, 5e5);
  m.rope_scaling = config::RopeScaling::llama3;
  m.rope_scaling_factor = 8.0;
  m.rope_low_freq_factor = 1.0;
  m.rope_high_freq_factor = 4.0;
  m.rope_original_seq_len = 8192;
  expect_same(m, {1.0, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508, 0.00321144611,
                  0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06, 2.92749974e-06,
                  1.28917316e-06, 5.6770881e-07});
}

TEST(Rope, Llama3ScalingWithOtherFactorsIsThatOfTransformers) {
  auto m = model_of(16, 1e4);
  m.rope_scaling = config::RopeScaling::llama3;
  m.rope_scaling_factor = 32.0;
  m.rope_low_freq_factor = 1.5;
  m.rope_high_freq_factor = 8.0;
  m.rope_original_seq_len = 64;
  expect_same(m, {1.0, 0.0909962952, 0.00312500005, 0.000988211832, 0.000312499993, 9.88211832e-05, 3.12500015e-05,
                  9.88211832e-06});
}

/// Between the two factors: 1 + 1/3 rotations, a third of the way from slow to whole.
TEST(Rope, Llama3MixesInProportionToRotations) {
  auto m = model_of(2, 1e4);  // one frequency: 1
  m.heads = 1;
  m.hidden = 2;
  m.rope_scaling = config::RopeScaling::llama3;
  m.rope_scaling_factor = 10.0;
  m.rope_original_seq_len = 1000;
  double const rotations = 1000 / (2 * std::numbers::pi);
  m.rope_low_freq_factor = rotations * 0.75;
  m.rope_high_freq_factor = rotations * 1.5;
  ASSERT_EQ(rope_frequencies(m).size(), 1u);
  EXPECT_NEAR(rope_frequencies(m)[0], 0.1 * 2 / 3 + 1.0 / 3, 1e-15);
}

TEST(Rope, ScaledFrequenciesAndFactorsAreThoseOfTransformersInDouble) {
  std::ifstream in(std::string(P3D_SOURCE_DIR) + "/tests/golden/rope.reference.txt");
  int lines = 0;
  for (std::string line, kind; std::getline(in, line);) {
    if (line.starts_with("#") || line.starts_with("longrope")) continue;
    std::istringstream words(line);
    config::Model m = model_of(2, 1e4);
    double fast = 0, slow = 0, factor = 0;
    words >> kind >> m.head_size >> m.rope_fraction >> m.rope_theta >> m.rope_scaling_factor >>
        m.rope_original_seq_len >> fast >> slow >> m.rope_attention_factor >> m.rope_truncate >> factor;
    ASSERT_FALSE(words.fail()) << line;
    m.rope_scaling = kind == "yarn"     ? config::RopeScaling::yarn
                     : kind == "llama3" ? config::RopeScaling::llama3
                                        : config::RopeScaling::linear;
    m.rope_beta_fast = m.rope_high_freq_factor = fast;
    m.rope_beta_slow = m.rope_low_freq_factor = slow;
    EXPECT_NEAR(rope_factor(m) / factor, 1.0, 5e-16) << line;
    auto const made = rope_frequencies(m);
    for (auto const found : made) {
      double expected = 0;
      words >> expected;
      EXPECT_NEAR(found / expected, 1.0, 5e-15) << line;
    }
    EXPECT_TRUE(words.good() || words.eof()) << "as many frequencies";
    EXPECT_FALSE(words.fail()) << line;
    m.rope_scaling_layers = {1, 0};
    EXPECT_EQ(rope_frequencies(m, 2), made);
    EXPECT_EQ(rope_factor(m, 1), 1.0);
    m.rope_scaling = config::RopeScaling::none;
    EXPECT_NE(rope_frequencies(m).size(), 0u);
    ++lines;
  }
  EXPECT_EQ(lines, 20);
}

TEST(Rope, FrequenciesOfLongAndShortSequencesAreThoseOfTransformersInDouble) {
  std::ifstream in(std::string(P3D_SOURCE_DIR) + "/tests/golden/rope.reference.txt");
  int lines = 0;
  for (std::string line, kind; std::getline(in, line);) {
    if (!line.starts_with("longrope")) continue;
    std::istringstream words(line);
    config::Model m = model_of(2, 1e4);
    std::int64_t seq_len = 0;
    double factor = 0;
    words >> kind >> m.head_size >> m.rope_fraction >> m.rope_theta >> m.rope_scaling_factor >>
        m.rope_original_seq_len >> m.rope_attention_factor >> seq_len >> factor;
    ASSERT_FALSE(words.fail()) << line;
    m.rope_scaling = config::RopeScaling::longrope;
    std::vector<double> expected;
    for (double a = 0, b = 0, c = 0; words >> a >> b >> c;) {
      m.rope_short_factors.push_back(a);
      m.rope_long_factors.push_back(b);
      expected.push_back(c);
    }
    EXPECT_NEAR(rope_factor(m) / factor, 1.0, 5e-16) << line;
    bool const is_long = seq_len > m.rope_original_seq_len;
    auto const length = is_long ? RopeLength::beyond_original : RopeLength::within_original;
    auto const made = rope_frequencies(m, 0, length);
    ASSERT_EQ(made.size(), expected.size()) << line;
    for (std::size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i] / expected[i], 1.0, 5e-15) << line;
    EXPECT_TRUE(rope_depends_on_length(m));
    m.rope_scaling_layers = {0};
    EXPECT_FALSE(rope_depends_on_length(m));
    EXPECT_EQ(rope_factor(m), 1.0);
    EXPECT_EQ(rope_frequencies(m, 0, length), rope_frequencies(m));
    ++lines;
  }
  EXPECT_EQ(lines, 10);
}

TEST(Rope, LayersWithAWindowMayHaveABaseOfTheirOwn) {
  auto m = model_of(16, 1e6);
  m.window = {4, 0}, m.rope_local_theta = 1e4;
  EXPECT_EQ(rope_frequencies(m, 0), rope_frequencies(model_of(16, 1e4)));
  EXPECT_EQ(rope_frequencies(m, 1), rope_frequencies(model_of(16, 1e6)));
}

TEST(Rope, LearnedPositionsHaveNoFrequencies) { EXPECT_TRUE(rope_frequencies(config::Model{}).empty()); }

}  // namespace
}  // namespace p3d::layout
