// SPDX-License-Identifier: Apache-2.0
// Who has which tokens under context parallelism, against brute force and closed forms.

#include <p3d/layout/context.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace {
using namespace p3d;
using namespace p3d::layout;
using config::ContextOrder;

constexpr ContextOrder orders[] = {ContextOrder::zigzag, ContextOrder::striped, ContextOrder::contiguous};

template <class Function>
void each_division(Function const& function) {
  for (auto const order : orders) {
    for (int cp = 1; cp <= 8; ++cp) {
      for (int a = 1; a <= cp; ++a) {
        if (cp % a != 0) continue;
        for (std::int64_t length = 16; length <= 50; ++length) {
          SCOPED_TRACE(
              fmt::format("order {}, cp {}, all_to_all {}, {} tokens", static_cast<int>(order), cp, a, length));
          function(ContextDivision{.seq_len = length, .cp = cp, .all_to_all = a, .order = order});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

std::vector<std::int64_t> list(TokenSet const& set) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < set.size(); ++i) out.push_back(set.at(i));
  return out;
}

/// The place of the ring that has token i, as the order is defined.
int place_of(ContextDivision const& d, std::int64_t i) {
  auto const ring = d.ring();
  if (d.order == ContextOrder::striped) return static_cast<int>(i % ring);
  auto const pieces = d.order == ContextOrder::zigzag ? 2 * ring : ring;
  int piece = 0;
  while (i >= even_share(d.seq_len, pieces, piece).end) ++piece;
  return d.order == ContextOrder::zigzag ? std::min(piece, 2 * ring - 1 - piece) : piece;
}

TEST(ContextDivision, EveryTokenIsOnOneRank) {
  each_division([](ContextDivision const& d) {
    std::vector<int> place(static_cast<std::size_t>(d.seq_len), -1), rank(place);
    std::int64_t most = 0, most_place = 0, least = d.seq_len;
    for (int p = 0; p < d.ring(); ++p) {
      most_place = std::max(most_place, d.place_tokens(p).size());
      for (auto const i : list(d.place_tokens(p))) {
        ASSERT_EQ(std::exchange(place.at(static_cast<std::size_t>(i)), p), -1);
        ASSERT_EQ(p, place_of(d, i));
      }
    }
    for (int r = 0; r < d.cp; ++r) {
      auto const tokens = list(d.tokens(r));
      ASSERT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
      most = std::max<std::int64_t>(most, std::ssize(tokens));
      least = std::min<std::int64_t>(least, std::ssize(tokens));
      for (auto const i : tokens) {
        ASSERT_EQ(std::exchange(rank.at(static_cast<std::size_t>(i)), r), -1);
        ASSERT_EQ(place[static_cast<std::size_t>(i)], d.place(r));
      }
    }
    ASSERT_EQ(std::count(rank.begin(), rank.end(), -1), 0);
    ASSERT_EQ(most, d.most_tokens());
    ASSERT_EQ(most_place, d.most_place_tokens());
    ASSERT_LE(most - least, 2);  // of two pieces, each one token more
  });
}

TEST(TokenSet, IsTheListOfItsTokens) {
  each_division([](ContextDivision const& d) {
    for (int r = 0; r < d.cp; r += 2) {
      for (auto const& set : {d.place_tokens(d.place(r)), d.tokens(r)}) {
        auto const tokens = list(set);
        ASSERT_TRUE(std::adjacent_find(tokens.begin(), tokens.end(), std::greater_equal<>()) == tokens.end());
        for (std::int64_t i = -1; i <= d.seq_len + 1; ++i) {
          ASSERT_EQ(set.below(i), std::lower_bound(tokens.begin(), tokens.end(), i) - tokens.begin()) << i;
        }
        for (std::int64_t begin = 0; begin <= set.size(); begin += 3) {
          for (std::int64_t end = begin; end <= set.size(); end += 2) {
            ASSERT_EQ(list(set.slice(begin, end)),
                      (std::vector<std::int64_t>(tokens.begin() + begin, tokens.begin() + end)));
          }
        }
      }
    }
  });
}

// 8 query heads of 6 with values of 4, over 2 heads of keys: a row has 48 + 12 + 8 columns, and an output 32.
TEST(AttentionSizes, CountBothWidthsOfHeads) {
  ContextHeads const heads{.heads = 8, .kv_heads = 2, .head_dim = 6, .value_dim = 4};
  EXPECT_EQ(heads.columns(), 68);
  EXPECT_EQ(heads.out_columns(), 32);
  ContextDivision const nested{.seq_len = 40, .cp = 4, .all_to_all = 2};  // places of 20 tokens, ranks of 10
  AttentionSizes const sizes(nested, heads, 3);
  EXPECT_EQ(sizes.qkv_elements(), 3 * 10 * 68);
  EXPECT_EQ(sizes.exchanged_elements(), 3 * 10 * 68);
  EXPECT_EQ(sizes.out_elements(), 3 * 20 * 4 * 4);
  EXPECT_EQ(sizes.sum_elements(), 3 * 20 * 4 * 6) << "for gradients of queries, which are wider";
  EXPECT_EQ(sizes.block_elements(), 3 * 20 * (6 + 4));
  auto wide = heads;
  wide.value_dim = 16;
  AttentionSizes const outputs(nested, wide, 3);
  EXPECT_EQ(outputs.exchanged_elements(), 3 * 10 * 128) << "outputs are wider than queries, keys and values";
  EXPECT_EQ(outputs.sum_elements(), 3 * 20 * 4 * 16);
  auto equal = heads;
  equal.value_dim = 0;
  EXPECT_EQ(equal.columns(), 48 + 2 * 12);
  EXPECT_EQ(AttentionSizes(nested, equal, 3).block_elements(), 3 * 20 * 2 * 6);
}

// Where latents of 5 travel, a place of 20 tokens has 3 x 20 x 5 of them; keys and values are made of them at their
// place.
TEST(AttentionSizes, CountLatentsThatTravel) {
  ContextHeads const heads{.heads = 8, .kv_heads = 8, .head_dim = 6, .value_dim = 4, .latent = 5};
  ContextDivision nested{.seq_len = 40, .cp = 4, .all_to_all = 2};
  EXPECT_EQ(AttentionSizes(nested, heads, 3).travelling_elements(), 3 * 20 * 4 * (6 + 4));
  EXPECT_EQ(AttentionSizes(nested, heads, 3).latent_elements(), 0);
  nested.latents = true;
  AttentionSizes const sizes(nested, heads, 3);
  EXPECT_EQ(sizes.travelling_elements(), 3 * 20 * 5);
  EXPECT_EQ(sizes.latent_elements(), 3 * 20 * 5);
  EXPECT_EQ(sizes.block_elements(), 3 * 20 * 4 * (6 + 4));
  EXPECT_EQ(sizes.exchanged_elements(), sizes.qkv_elements());
  auto wide = heads;
  wide.latent = 100;
  EXPECT_EQ(AttentionSizes(nested, wide, 3).exchanged_elements(), 2 * 3 * 10 * 100) << "latents for each member";
}

// A ring of 4 brings 30 tokens of 40. Among 4 members each sends its 10 tokens to 3 others; among 2 in a ring of 2 to
// one of 2, and 20 tokens come from the other place.
TEST(ContextTraffic, CountsLatents) {
  ContextWidths const widths{.q = 48, .k = 48, .v = 32, .out = 32, .heads = 8, .latent = 6};
  auto const ring = context_traffic({.seq_len = 40, .cp = 4, .latents = true}, widths);
  EXPECT_DOUBLE_EQ(ring.forward, 30 * 6);
  EXPECT_DOUBLE_EQ(ring.backward, 2 * 30 * 6);
  EXPECT_DOUBLE_EQ(ring.sums, 30 * 6);
  EXPECT_DOUBLE_EQ(ring.again, 30 * 6);
  auto const members = context_traffic({.seq_len = 40, .cp = 4, .all_to_all = 4, .latents = true}, widths);
  EXPECT_DOUBLE_EQ(members.forward, 7.5 * (48 + 32) + 30 * 6);
  EXPECT_DOUBLE_EQ(members.backward, 7.5 * (48 + 32 + 8) + 2 * 30 * 6);
  EXPECT_DOUBLE_EQ(members.sums, 7.5 * 8);
  EXPECT_DOUBLE_EQ(members.again, 7.5 * 32);
  auto const nested = context_traffic({.seq_len = 40, .cp = 4, .all_to_all = 2, .latents = true}, widths);
  EXPECT_DOUBLE_EQ(nested.forward, 5 * (48 + 32) + 10 * 6 + 20 * 6);
  EXPECT_DOUBLE_EQ(nested.backward, 5 * (48 + 32 + 8) + 2 * 10 * 6 + 2 * 20 * 6);
  EXPECT_DOUBLE_EQ(nested.sums, 5 * 8 + 20 * 6);
  EXPECT_DOUBLE_EQ(nested.again, 5 * 32 + 20 * 6);
}

// DeepSeek-V3: keys and values of 40,960 / tp, latents of 576. The decision is one of bytes, for each exchange.
TEST(ContextTraffic, LatentsTravelWhereTheyAreFewerBytes) {
  auto const travel = [](int tp, int cp, int all_to_all, std::int64_t latent, ContextBytes const& bytes = {2, 4}) {
    std::int64_t const heads = 128 / tp;
    ContextWidths const widths{
        .q = heads * 192, .k = heads * 192, .v = heads * 128, .out = heads * 128, .heads = heads, .latent = latent};
    return latents_are_less({.seq_len = 4096, .cp = cp, .all_to_all = all_to_all}, widths, bytes);
  };
  EXPECT_TRUE(travel(1, 8, 1, 576));
  EXPECT_TRUE(travel(8, 8, 1, 576));
  EXPECT_TRUE(travel(64, 8, 1, 576)) << "640 for two heads";
  EXPECT_FALSE(travel(128, 8, 1, 576)) << "320 for one head";
  EXPECT_FALSE(travel(8, 1, 1, 576)) << "nothing travels";
  EXPECT_FALSE(travel(8, 8, 1, 0)) << "no latents";
  // 3 a latent against 2 (k + v).
  EXPECT_TRUE(travel(1, 8, 8, 576)) << "13,824 against 81,920";
  EXPECT_TRUE(travel(4, 8, 8, 576)) << "13,824 against 20,480";
  EXPECT_FALSE(travel(8, 8, 8, 576)) << "13,824 against 10,240";
  EXPECT_TRUE(travel(8, 8, 4, 576)) << "6,912 against 10,240";
  // [2, 2] with keys and values of 1,000: (3 + 2 x 2 (2 + s) / 2) latent against 2 + (2 + s), s the bytes of a sum.
  auto const nested = [&](std::int64_t latent, ContextBytes const& bytes) {
    ContextWidths const widths{.k = 600, .v = 400, .heads = 1, .latent = latent};
    return latents_are_less({.seq_len = 4096, .cp = 4, .all_to_all = 2}, widths, bytes);
  };
  for (ContextBytes const& bytes : {ContextBytes{2, 4}, ContextBytes{4, 4}}) {
    double const s = bytes.sums / bytes.storage;
    // A rank's tokens are a quarter: 1/4 latent three times, and 1/2 latent 2 + s times; 1/8 (k + v) twice, and 1/4.
    auto const equal = (2 / 8.0 + (2 + s) / 4) * 1000 / (3 / 4.0 + (2 + s) / 2);
    EXPECT_TRUE(nested(static_cast<std::int64_t>(equal) - 1, bytes));
    EXPECT_FALSE(nested(static_cast<std::int64_t>(equal) + 1, bytes));
  }
}

TEST(ContextTraffic, CountsKeysAndValuesByTheirWidths) {
  ContextWidths const widths{.q = 48, .k = 12, .v = 8, .out = 32, .heads = 8};
  auto const ring = context_traffic({.seq_len = 40, .cp = 4}, widths);
  EXPECT_DOUBLE_EQ(ring.forward, 3 * 10 * (12 + 8));
  EXPECT_DOUBLE_EQ(ring.backward, 2 * ring.forward);
  EXPECT_DOUBLE_EQ(ring.again, ring.forward);
  auto const members = context_traffic({.seq_len = 40, .cp = 4, .all_to_all = 4}, widths);
  EXPECT_DOUBLE_EQ(members.forward, 0.75 * 10 * (48 + 12 + 8 + 32));
  EXPECT_DOUBLE_EQ(members.backward, 0.75 * 10 * (48 + 12 + 8 + 32 + 8));
  EXPECT_DOUBLE_EQ(members.again, 0.75 * 10 * 32);
}

TEST(ContextWait, CountsKeysAndValuesByTheirWidths) {
  MachineRates const rates{.flops = 1, .bandwidth = 2, .latency = 5};
  ContextWork const work{.widths = {.q = 48, .k = 12, .v = 8, .out = 32, .heads = 8}, .samples = 1};
  auto const gather = context_wait({.seq_len = 40, .cp = 4, .gather = true}, work, rates);
  EXPECT_DOUBLE_EQ(gather.forward, 3 * (5 + 10 * 20 * 4 / 2.0));
  auto const members = context_wait({.seq_len = 40, .cp = 2, .all_to_all = 2}, work, rates);
  EXPECT_DOUBLE_EQ(members.forward, 2 * 5 + 20 * (68 + 32) / 2.0 * 4 / 2);
  EXPECT_DOUBLE_EQ(members.again, 5 + 20 * 32 / 2.0 * 4 / 2);
}

// A hop of a ring is 10 tokens of 6. A rank makes keys and values of three other places, once forward and three times
// (with gradients) backward; 40 tokens of members need no more products than its own.
TEST(ContextWait, CountsLatentsAndTheirExpansion) {
  MachineRates const rates{.flops = 1, .bandwidth = 2, .latency = 5};
  ContextWork const work{
      .widths = {.q = 48, .k = 48, .v = 32, .out = 32, .heads = 8, .latent = 6}, .samples = 1, .expansion = 1000};
  auto const gather = context_wait({.seq_len = 40, .cp = 4, .gather = true, .latents = true}, work, rates);
  EXPECT_DOUBLE_EQ(gather.forward, 3 * (5 + 10 * 6 * 4 / 2.0) + 3 * 1000);
  EXPECT_DOUBLE_EQ(gather.again, gather.forward);
  EXPECT_DOUBLE_EQ(gather.backward, 6 * (5 + 10 * 6 * 4 / 2.0) + 9 * 1000);
  auto const members = context_wait({.seq_len = 40, .cp = 2, .all_to_all = 2, .latents = true}, work, rates);
  double const latents = 5 + 20 * 6 * 4 / 2.0;
  EXPECT_DOUBLE_EQ(members.forward, 2 * 5 + 20 * (48 + 32) / 2.0 * 4 / 2 + latents);
  EXPECT_DOUBLE_EQ(members.backward, 3 * 5 + 20 * (48 + 32 + 8) / 2.0 * 4 / 2 + 2 * latents);
  EXPECT_DOUBLE_EQ(members.again, 5 + 20 * 32 / 2.0 * 4 / 2);
}

ContextDivision ring_of(ContextOrder order, int cp, std::int64_t length) {
  return {.seq_len = length, .cp = cp, .order = order};
}

// n tokens on c places, n divisible by 2 c.
TEST(ContextImbalance, ClosedForms) {
  for (int c = 1; c <= 16; ++c) {
    for (std::int64_t n : {(256 + 2 * c - 1) / (2 * c) * 2 * c, 2 * c * 128, 2 * c * 300}) {
      ASSERT_TRUE(n >= 256 && n % (2 * c) == 0) << n;
      double const tokens = static_cast<double>(n);
      EXPECT_LE(context_imbalance(ring_of(ContextOrder::zigzag, c, n), 0), 1.01);
      EXPECT_NEAR(context_imbalance(ring_of(ContextOrder::zigzag, c, n), 0), 1.0, 1e-12);
      EXPECT_NEAR(context_imbalance(ring_of(ContextOrder::striped, c, n), 0), 1 + (c - 1) / (tokens + 1), 1e-12);
      EXPECT_NEAR(context_imbalance(ring_of(ContextOrder::contiguous, c, n), 0),
                  (2 * tokens - tokens / c + 1) / (tokens + 1), 1e-12);
    }
  }
}

// Every pair of a query and a key that the mask lets through, counted one by one.
TEST(ContextImbalance, IsThatOfCountedPairs) {
  std::mt19937 random(5);
  for (int k = 0; k < 200; ++k) {
    ContextDivision d{.seq_len = 16 + static_cast<std::int64_t>(random() % 60),
                      .cp = 1 + static_cast<int>(random() % 8),
                      .order = orders[random() % 3]};
    auto const window = static_cast<std::int64_t>(random() % 3 == 0 ? 1 + random() % 20 : 0);
    std::vector<std::int64_t> first(static_cast<std::size_t>(d.seq_len), 0);
    for (std::size_t i = 1; i < first.size(); ++i)
      first[i] = random() % 9 == 0 ? static_cast<std::int64_t>(i) : first[i - 1];
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(d.cp), 0);
    for (std::int64_t q = 0; q < d.seq_len; ++q) {
      for (std::int64_t key = 0; key < d.seq_len; ++key) {
        bool const seen = key <= q && key >= first[static_cast<std::size_t>(q)] && (window == 0 || q - key < window);
        pairs[static_cast<std::size_t>(place_of(d, q))] += seen ? 1 : 0;
      }
    }
    double all = 0;
    for (auto const p : pairs) all += static_cast<double>(p);
    double const most = static_cast<double>(*std::max_element(pairs.begin(), pairs.end()));
    ASSERT_NEAR(context_imbalance(d, window, first), most * d.cp / all, 1e-12);
  }
}

}  // namespace
