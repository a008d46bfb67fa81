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
