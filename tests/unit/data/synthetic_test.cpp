// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/token_source.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace {
using namespace p3d::data;

std::vector<int> tokens(TokenSource const& source, std::int64_t first, std::size_t count) {
  std::vector<int> out(count);
  source.read(first, out);
  return out;
}

// From an implementation of the definition in Python integers (Philox included).
TEST(Synthetic, KnownTokens) {
  EXPECT_EQ(tokens(*make_synthetic(7, 50), 0, 24), (std::vector<int>{40, 37, 16, 19, 40, 37, 16, 19, 40, 37, 16, 19,
                                                                     40, 37, 16, 19, 40, 37, 16, 2,  21, 4,  35, 2}));
}

TEST(Synthetic, AnyPlaceReadsAsFromTheStart) {
  auto const source = make_synthetic(3, 97);
  auto const all = tokens(*source, 0, 600);
  for (std::size_t first = 0; first < 600; first += 7) {
    auto const count = std::min<std::size_t>(31, 600 - first);
    auto const part = tokens(*source, static_cast<std::int64_t>(first), count);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
  }
  EXPECT_NO_THROW(tokens(*source, source->size() - 1, 1));
  p3d::test::expect_error([&] { tokens(*source, source->size(), 1); }, "the tokens exist");
}

TEST(Synthetic, SevenInEightFollowTheRule) {
  for (std::int64_t vocab : {2, 50, 256, 50257}) {
    auto const all = tokens(*make_synthetic(11, vocab), 1000, 20001);
    std::int64_t factor = vocab == 50 ? 7 : 5;  // smallest >= 5 without a common divisor
    std::int64_t ruled = 0, in_range = 0;
    for (std::size_t i = 1; i < all.size(); ++i) {
      ruled += all[i] == (factor * all[i - 1] + 7) % vocab;
      in_range += all[i] >= 0 && all[i] < vocab;
    }
    double const p = 7.0 / 8.0 + 1.0 / (8.0 * static_cast<double>(vocab)), sigma = std::sqrt(20000.0 * p * (1.0 - p));
    EXPECT_NEAR(static_cast<double>(ruled), 20000.0 * p, 5.0 * sigma) << vocab;
    EXPECT_EQ(in_range, 20000);
  }
}

TEST(Synthetic, EntropyIsBetweenItsClosedForms) {
  EXPECT_NEAR(synthetic_entropy(1), 0.0, 1e-15);
  // Two tokens: probabilities 15/16 and 1/16.
  EXPECT_NEAR(synthetic_entropy(2), -(15.0 / 16.0) * std::log(15.0 / 16.0) - std::log(1.0 / 16.0) / 16.0, 1e-15);
  EXPECT_LT(synthetic_entropy(256), std::log(256.0));
}

TEST(Synthetic, HashTellsSeedsAndVocabulariesApart) {
  EXPECT_EQ(make_synthetic(1, 64)->hash(), make_synthetic(1, 64)->hash());
  EXPECT_NE(make_synthetic(1, 64)->hash(), make_synthetic(2, 64)->hash());
  EXPECT_NE(make_synthetic(1, 64)->hash(), make_synthetic(1, 65)->hash());
}

TEST(MakeTokenSource, FollowsTheDataSection) {
  p3d::config::Config c;
  c.data.format = p3d::config::DataFormat::synthetic;
  EXPECT_EQ(make_token_source(c)->hash(), make_synthetic(c.run.seed, c.model.vocab_size)->hash());
  c.data.format = p3d::config::DataFormat::text;
  c.data.path = {P3D_SOURCE_DIR "/CMakeLists.txt"};
  EXPECT_EQ(make_token_source(c)->hash(), make_byte_text(c.data.path, 256)->hash());
}

}  // namespace
