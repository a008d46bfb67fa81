// SPDX-License-Identifier: Apache-2.0
// Causal attention: against softmax written out, finite differences, and the same numbers for every split of heads and
// samples.

#include "attention_case.hpp"

#include <support/errors.hpp>

namespace attention_test {

class Attention : public ::testing::TestWithParam<Case> {
protected:
  Case const c = GetParam();
  Vec const qkv = random_values("qkv", c.rows() * c.width()), dout = random_values("dout", c.rows() * c.out_width());
};

TEST_P(Attention, ForwardMatchesSoftmaxWrittenOut) {
  auto const expected = plain(c, qkv);
  auto const d = forward<double>(c, qkv);
  expect_close(d.out, expected.out, 1e-13, "out");
  expect_close(d.lse, expected.lse, 1e-13, "lse");
  auto const f = forward<float>(c, qkv);
  expect_close(f.out, expected.out, 4e-6, "out, float");
  expect_close(f.lse, expected.lse, 4e-6, "lse, float");
}

TEST_P(Attention, BackwardMatchesTheGradientWrittenOut) {
  auto const expected = plain_gradient(c, qkv, dout);
  expect_close(backward<double>(c, qkv, dout), expected, 1e-13, "dqkv");
  expect_close(backward<float>(c, qkv, dout), expected, 1e-5, "dqkv, float");
}

template <class S>
void check_16_bits(Case const& c, Vec const& qkv, Vec const& dout) {
  auto const found = forward<S>(c, qkv), expected = forward<double>(c, qkv);
  // The form of devices rounds probabilities and gradients of scores for its GEMMs.
  bool const rounds = kernels::attention_scratch_bytes<S>(c.shape()) > 0;
  expect_rounded<S>(found.out, expected.out, "out", rounds ? roundoff<S> : 4e-6);
  expect_close(found.lse, expected.lse, 4e-6, "lse");
  // Both from the output that was stored.
  expect_rounded<S>(backward<S>(c, qkv, dout, found), backward<double>(c, qkv, dout, found), "dqkv",
                    rounds ? 2 * roundoff<S> : 1e-5);
}
TEST_P(Attention, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>(c, rounded<bfloat16>(qkv), rounded<bfloat16>(dout));
  check_16_bits<float16>(c, rounded<float16>(qkv), rounded<float16>(dout));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    // 300 and 600: more than one block of keys, and both heights of the host's query tiles.
    ::testing::Values(Case{1, 300, 2, 1, 12, 0.0}, Case{1, 600, 2, 1, 10, 0.0}, Case{1, 523, 1, 1, 9, 0.2},
                      Case{2, 5, 2, 2, 6, 0.0}, Case{1, 1, 1, 1, 4, 0.0}, Case{1, 64, 1, 1, 32, 0.0},
                      Case{2, 65, 2, 1, 8, 0.0}, Case{1, 150, 4, 2, 64, 0.0}, Case{1, 130, 3, 1, 37, 0.0},
                      Case{2, 7, 2, 2, 6, 0.3}, Case{1, 131, 4, 2, 20, 0.2}, Case{3, 64, 2, 1, 40, 0.5},
                      with_values({2, 5, 2, 2, 6, 0.0}, 4), with_values({2, 7, 4, 2, 4, 0.3}, 6),
                      with_values({1, 300, 2, 1, 12, 0.1}, 9), with_values({1, 150, 4, 2, 24, 0.0}, 16),
                      with_values({1, 131, 3, 1, 5, 0.2}, 150), with_cap({1, 300, 2, 1, 12, 0.0}, 0.7),
                      with_cap({2, 7, 2, 2, 6, 0.3}, 1.5), with_cap(with_values({1, 131, 4, 2, 20, 0.2}, 9), 0.4),
                      with_cap({2, 65, 2, 1, 8, 0.0}, 50.0)),
    [](auto const& info) { return info.param.name(); });

class AttentionGradient : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionGradient, MatchesFiniteDifferences) {
  Case const c = GetParam();
  auto const qkv = random_values("qkv", c.rows() * c.width()), dout = random_values("dout", c.rows() * c.out_width());
  expect_gradient([&](Vec const& v) { return dot(forward<double>(c, v).out, dout); }, qkv,
                  backward<double>(c, qkv, dout), "dqkv");
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradient,
                         ::testing::Values(Case{2, 5, 4, 2, 6, 0.0}, Case{1, 67, 1, 1, 3, 0.0},
                                           Case{2, 6, 2, 1, 4, 0.4}, Case{1, 66, 2, 2, 2, 0.3},
                                           with_values({2, 5, 4, 2, 4, 0.3}, 6), with_values({1, 67, 1, 1, 3, 0.0}, 2),
                                           with_cap({2, 6, 2, 1, 4, 0.4}, 0.5), with_cap({1, 67, 1, 1, 3, 0.0}, 0.8)),
                         [](auto const& info) { return info.param.name(); });

void expect_same_in_halves(std::int64_t values) {
  Case const whole = with_values({2, 70, 4, 2, 10, 0.3}, values);
  auto const qkv = random_values("qkv", whole.rows() * whole.width()),
             dout = random_values("dout", whole.rows() * whole.out_width());
  auto const all = forward<double>(whole, qkv);
  auto const gradient = backward<double>(whole, qkv, dout);
  for (std::int64_t half : {0, 1}) {
    Case part = with_values({2, 70, 2, 1, 10, 0.3}, values);
    part.first_head = 2 * half;
    // Queries of two heads, keys and values of one.
    std::vector<std::pair<std::int64_t, std::int64_t>> const ranges = {
        {2 * half * 10, 20}, {(4 + half) * 10, 10}, {60 + half * values, values}};
    auto const split = forward<double>(part, columns_of(qkv, whole.width(), ranges));
    std::vector<std::pair<std::int64_t, std::int64_t>> const out_range = {{2 * half * values, 2 * values}};
    expect_same(split.out, columns_of(all.out, whole.out_width(), out_range), "out");
    expect_same(
        backward<double>(part, columns_of(qkv, whole.width(), ranges), columns_of(dout, whole.out_width(), out_range)),
        columns_of(gradient, whole.width(), ranges), "dqkv");
  }
}
TEST(AttentionSplit, HeadsInTwoHalvesGiveTheSameNumbers) {
  for (std::int64_t values : {10, 6}) expect_same_in_halves(values);
}

TEST(AttentionSplit, SamplesOneByOneGiveTheSameNumbers) {
  Case const whole{3, 20, 2, 2, 10, 0.3};
  auto const qkv = random_values("qkv", whole.rows() * whole.width()),
             dout = random_values("dout", whole.rows() * whole.out_width());
  Vec out, gradient;
  for (std::int64_t sample = 0; sample < 3; ++sample) {
    Case part = whole;
    part.samples = 1;
    part.first_sample = whole.first_sample + sample;
    auto const piece = [&](Vec const& v) {
      std::int64_t const n = static_cast<std::int64_t>(v.size()) / 3;
      return Vec(v.begin() + sample * n, v.begin() + (sample + 1) * n);
    };
    auto const y = forward<double>(part, piece(qkv)).out;
    auto const g = backward<double>(part, piece(qkv), piece(dout));
    out.insert(out.end(), y.begin(), y.end());
    gradient.insert(gradient.end(), g.begin(), g.end());
  }
  expect_same(out, forward<double>(whole, qkv).out, "out");
  expect_same(gradient, backward<double>(whole, qkv, dout), "dqkv");
}

TEST(AttentionFuture, LaterTokensDoNotMatterEvenAsNan) {
  Case const c{1, 300, 1, 1, 8, 0.0};
  constexpr std::int64_t before_them = 256;  // queries that share no block with them
  auto qkv = random_values("qkv", c.rows() * c.width());
  auto const before = forward<double>(c, qkv);
  for (std::int64_t i = 298 * c.width(); i < c.rows() * c.width(); ++i) qkv[i] = std::nan("");
  auto const after = forward<double>(c, qkv);
  Vec const a(before.out.begin(), before.out.begin() + before_them * 8),
      b(after.out.begin(), after.out.begin() + before_them * 8);
  expect_same(a, b);
  EXPECT_TRUE(std::isnan(after.out.back())) << "NaN must not be hidden";
}

// The cap holds scores that have grown beyond every bound; their keys are seen alike.
TEST(AttentionCap, ScoresOfAnySizeStayWithinIt) {
  Case const c = with_cap({1, 40, 2, 1, 8, 0.0}, 2.0);
  auto qkv = random_values("qkv", c.rows() * c.width());
  for (double& x : qkv) x *= 1e6;
  auto const expected = plain(c, qkv);
  auto const d = forward<double>(c, qkv);
  expect_close(d.out, expected.out, 1e-13, "out");
  expect_close(d.lse, expected.lse, 1e-13, "lse");
  for (double x : forward<float>(c, qkv).lse) EXPECT_LE(std::fabs(x), 2.0 + std::log(40.0) + 1e-5);
}

TEST(AttentionShape, WhatDoesNotFitIsRefused) {
  expect_error(
      [] {
        forward<double>(Case{1, 4, 3, 2, 8, 0.0}, random_values("qkv", 4 * 56));
      },
      "kv_heads must divide heads");
  Case const good{1, 4, 2, 2, 8, 0.0};
  Owned2<double> const qkv("p3d::test::qkv", 4, 48), out("p3d::test::out", 4, 16);
  Owned1<double> const few("p3d::test::lse", 7), lse("p3d::test::lse", 8);
  expect_error([&] { attend<double>(good, good.shape(), qkv, out, few); }, "every query and head has a log-sum-exp");
  Owned1<int> const documents("p3d::test::documents", 3);
  auto shape = good.shape();
  shape.documents = documents;
  expect_error([&] { attend<double>(good, shape, qkv, out, lse); }, "documents are known of all tokens");
}

}  // namespace attention_test
