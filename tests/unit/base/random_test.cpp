// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/random.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

using namespace p3d::base;

namespace {

struct KnownAnswer {
  std::uint64_t stream, block;
  RandomKey key;
  std::array<std::uint32_t, 4> words;
};

// Philox4x32-10 in the file tests/kat_vectors of Random123: zeros, ones, and the digits of pi.
std::vector<KnownAnswer> const known_answers{
    {0, 0, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {~0ULL, ~0ULL, {~0U, ~0U}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x0370734413198a2eULL,
     0x85a308d3243f6a88ULL,
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

// The generator written out from the paper (section 4.3: multipliers, Weyl constants, ten rounds), as the other half.
std::array<std::uint32_t, 4> philox_of_the_paper(std::array<std::uint32_t, 4> c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const p0 = 0xD2511F53ULL * c[0], p1 = 0xCD9E8D57ULL * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

__extension__ using Wide = unsigned __int128;

}  // namespace

TEST(Random, KnownAnswersOfPhilox) {
  for (auto const& known : known_answers) {
    auto const block = random_block(known.key, known.stream, known.block);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.w[i], known.words[i]) << "word " << i;
  }
}

TEST(Random, BlockIsThePapersGeneratorAtCounterBlockAndStream) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::uint64_t const stream = i * 0x9e3779b97f4a7c15ULL, block = i * i * 0x100000001ULL + i;
    RandomKey const key = random_key(i, "purpose");
    auto const expected =
        philox_of_the_paper({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                             static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                            key.k0, key.k1);
    auto const found = random_block(key, stream, block);
    for (int w = 0; w < 4; ++w) EXPECT_EQ(found.w[w], expected[w]);
  }
}

TEST(Random, WordsAreTheBlocksInOrder) {
  RandomKey const key = random_key(7, "words");
  for (std::uint64_t index = 0; index < 40; ++index)
    EXPECT_EQ(random_word(key, 3, index), random_block(key, 3, index / 4).w[index % 4]);
}

// By hand: FNV-1a of "" is its offset basis, splitmix64 of the state 0 gives 0xe220a8397b1dcdaf (its published first
// output).
TEST(Random, KeyIsSplitmixOfTheHashedPurposeAndTheSeed) {
  RandomKey const key = random_key(14695981039346656037ULL, "");  // the hash and the seed cancel
  EXPECT_EQ(key.k0, 0x7b1dcdafU);
  EXPECT_EQ(key.k1, 0xe220a839U);
  // FNV-1a 64 of "a" is 0xaf63dc4c8601ec8c, of "foobar" 0x85944171f73967e8 (the authors' test vectors).
  RandomKey const a = random_key(0xaf63dc4c8601ec8cULL, "a"), foobar = random_key(0x85944171f73967e8ULL, "foobar");
  EXPECT_EQ(a.k0, 0x7b1dcdafU);
  EXPECT_EQ(foobar.k1, 0xe220a839U);
}

TEST(Random, KeysOfSeedsAndPurposesDiffer) {
  std::set<std::uint64_t> keys;
  auto add = [&](RandomKey k) { keys.insert((static_cast<std::uint64_t>(k.k1) << 32) | k.k0); };
  for (std::uint64_t seed = 0; seed < 1000; ++seed)
    for (char const* purpose : {"", "dropout", "data", "layers.0.attention.weight", "layers.1.attention.weight"})
      add(random_key(seed, purpose));
  EXPECT_EQ(keys.size(), 5000u);
}

// Two purposes, and two streams of one purpose, must look independent: about half of all bits differ.
TEST(Random, KeysAndStreamsAreSeparate) {
  auto differing_bits = [](auto&& first, auto&& second) {
    int bits = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) bits += __builtin_popcount(first(i) ^ second(i));
    return bits;  // of 32000; the standard deviation of a fair coin is 89
  };
  RandomKey const a = random_key(1, "dropout"), b = random_key(1, "data"), c = random_key(2, "dropout");
  auto word = [](RandomKey key, std::uint64_t stream) {
    return [=](std::uint64_t i) { return random_word(key, stream, i); };
  };
  EXPECT_NEAR(differing_bits(word(a, 0), word(b, 0)), 16000, 500);
  EXPECT_NEAR(differing_bits(word(a, 0), word(c, 0)), 16000, 500);
  EXPECT_NEAR(differing_bits(word(a, 0), word(a, 1)), 16000, 500);
  EXPECT_NEAR(differing_bits(word(a, 0), word(a, 1ULL << 32)), 16000, 500);
}

TEST(Random, UniformReachesNeitherZeroNorMoreThanOne) {
  EXPECT_EQ(uniform_from(0, 0), std::ldexp(1.0, -54));
  EXPECT_LE(uniform_from(~0U, ~0U), 1.0);
  EXPECT_NEAR(uniform_from(0x80000000U, 0), 0.5, 1e-15);
  EXPECT_GT(uniform_from(1, 0), uniform_from(0, ~0U));  // the first word is the high half
}

TEST(Random, NormalHasTheMomentsOfTheNormalDistribution) {
  RandomKey const key = random_key(42, "moments");
  int const n = 200000;
  std::array<double, 5> moment{};
  double neighbours = 0, previous = 0;
  int beyond_two = 0;
  for (int i = 0; i < n; ++i) {
    double const z = random_normal(key, 5, static_cast<std::uint64_t>(i));
    ASSERT_TRUE(std::isfinite(z));
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(z, k) / n;
    neighbours += z * previous / n;
    previous = z;
    if (std::fabs(z) > 2.0) ++beyond_two;
  }
  // Five standard errors: sqrt(1, 2, 15, 96 over n); P(|z| > 2) = 0.0455003.
  double const s = 5.0 / std::sqrt(double(n));
  EXPECT_NEAR(moment[1], 0.0, s);
  EXPECT_NEAR(moment[2], 1.0, s * std::sqrt(2.0));
  EXPECT_NEAR(moment[3], 0.0, s * std::sqrt(15.0));
  EXPECT_NEAR(moment[4], 3.0, s * std::sqrt(96.0));
  EXPECT_NEAR(neighbours, 0.0, s);
  EXPECT_NEAR(beyond_two / double(n), 0.0455003, s * 0.21);
}

TEST(Random, LogAndCosAreThoseOfTheLibrary) {
  RandomKey const key = random_key(5, "functions");
  double log_error = 0, cos_error = 0;
  auto const check = [&](double u) {
    double const l = std::log(u);
    log_error = std::max(log_error, l == 0.0 ? std::fabs(log_of(u)) : std::fabs(log_of(u) / l - 1.0));
    cos_error = std::max(cos_error, std::fabs(cos_of_turns(u) - std::cos(2 * std::acos(-1.0) * u)));
  };
  for (int i = 0; i < 30000; ++i) {
    auto const r = random_block(key, 0, static_cast<std::uint64_t>(i));
    double const u = uniform_from(r.w[0], r.w[1]);
    check(u);
    check(std::ldexp(u, -(i % 53)));            // small
    check(1.0 - std::ldexp(u, -(i % 53) - 1));  // near 1
  }
  for (double u : {std::ldexp(1.0, -54), 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, std::sqrt(0.5),
                   std::nextafter(1.0, 0.0), 1.0})
    check(u);
  EXPECT_LT(log_error, 5e-16);
  EXPECT_LT(cos_error, 1.5e-15);  // of which the library's argument, rounded to 2 pi u, is 9e-16
}

TEST(Random, NormalOfOneBlockByHand) {
  RandomKey const key = random_key(3, "one");
  auto const r = random_block(key, 9, 11);
  double const u1 = (std::floor((r.w[0] * 4294967296.0L + r.w[1]) / 2048) + 0.5L) / 9007199254740992.0L;
  double const u2 = (std::floor((r.w[2] * 4294967296.0L + r.w[3]) / 2048) + 0.5L) / 9007199254740992.0L;
  EXPECT_NEAR(random_normal(key, 9, 11), std::sqrt(-2 * std::log(u1)) * std::cos(2 * std::acos(-1.0) * u2), 1e-13);
}

TEST(Random, BelowIsTheHighWordOfTheFullProduct) {
  RandomKey const key = random_key(1, "below");
  for (std::uint64_t bound : {1ULL, 2ULL, 3ULL, 1000ULL, 0xffffffffULL, 0x100000000ULL, 0x123456789abcdefULL, ~0ULL}) {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      auto const r = random_block(key, 2, i);
      std::uint64_t const word = (static_cast<std::uint64_t>(r.w[0]) << 32) | r.w[1];
      std::uint64_t const found = random_below(key, 2, i, bound);
      ASSERT_EQ(found, static_cast<std::uint64_t>((static_cast<Wide>(word) * bound) >> 64));
      ASSERT_LT(found, bound);
    }
  }
}

TEST(Random, BelowIsUniform) {
  RandomKey const key = random_key(8, "uniform");
  constexpr int bins = 10, n = 100000;
  std::array<int, bins> count{};
  for (int i = 0; i < n; ++i) ++count[random_below(key, 0, static_cast<std::uint64_t>(i), bins)];
  double chi2 = 0;
  for (int c : count) chi2 += (c - n / double(bins)) * (c - n / double(bins)) / (n / double(bins));
  EXPECT_LT(chi2, 33.7) << "chi-square with 9 degrees of freedom exceeds its 0.0001 quantile";
  EXPECT_GT(chi2, 0.5) << "counts too even to be random";
}
