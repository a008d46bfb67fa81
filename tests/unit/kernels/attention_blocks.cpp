// SPDX-License-Identifier: Apache-2.0
// How attention on devices is cut into blocks. With P3D_TEST_ATTENTION_BYTES the whole program has blocks of so many
// bytes: all cases of attention, in several blocks.

#include "attention_case.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/memory_sizes.hpp>
#include <p3d/base/token_set.hpp>

#include <support/errors.hpp>

#include <kernels/attention_blocks.hpp>
#include <kernels/launch.hpp>

#include <cstdlib>
#include <set>

namespace attention_test {

using p3d::base::TokenSet;
using kernels::AttentionBlocks;

std::int64_t asked_for(std::int64_t usual) {
  char const* const text = std::getenv("P3D_TEST_ATTENTION_BYTES");
  return text == nullptr ? usual : std::atoll(text);
}
std::int64_t const bytes = kernels::attention_block_bytes = asked_for(kernels::attention_block_bytes);

kernels::AttentionShape shape_of(TokenSet queries, TokenSet keys, std::int64_t heads, std::int64_t kv_heads,
                                 std::int64_t dim, std::int64_t values, std::int64_t window) {
  kernels::AttentionShape s;
  s.samples = 1;
  s.queries = queries;
  s.keys = keys;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = dim;
  s.value_dim = values;
  s.window = window;
  return s;
}

/// What a block of so many rows takes, forward or backward: what attention_gemm.cpp takes for it.
template <class S>
std::int64_t bytes_of(std::int64_t rows, std::int64_t keys, std::int64_t dim, std::int64_t values) {
  using A = Acc<S>;
  auto const piece = [](std::int64_t n, std::size_t size) {
    return (n * static_cast<std::int64_t>(size) + 63) / 64 * 64;
  };
  std::int64_t const length = p3d::base::AttentionScores::row_length(keys);
  auto const forward = piece(rows * length, sizeof(A)) + piece(rows * values, sizeof(A)) + piece(2 * rows, sizeof(A)) +
                       piece(rows * dim, sizeof(S));
  auto const backward = 2 * piece(rows * length, sizeof(A)) + piece(rows * dim, sizeof(A)) +
                        piece(rows * dim, sizeof(S)) + piece(rows * values, sizeof(S));
  return std::max(forward, backward);
}

/// Every query is in one block, with all keys that it sees, in the memory that was promised; what changed is in
/// `kinds`.
template <class S>
void check(kernels::AttentionShape const& s, std::int64_t promised, std::set<std::string>& kinds) {
  AttentionBlocks<S> const blocks(s);
  std::int64_t const group = s.heads / s.kv_heads;
  ASSERT_GE(blocks.kv_heads(), 1);
  ASSERT_LE(blocks.kv_heads(), s.kv_heads);
  ASSERT_GE(blocks.members(), 1);
  ASSERT_LE(blocks.members(), group);
  std::int64_t const sums = AttentionBlocks<S>::scores_of(s).sum_bytes(blocks.kv_heads() * s.keys.size());
  std::int64_t query = 0;
  int count = 0;
  while (query < s.queries.size()) {
    auto const b = blocks.at(query);
    ASSERT_EQ(b.query0, query);
    ASSERT_GE(b.queries, 1);
    for (std::int64_t i = query; i < query + b.queries; ++i) {
      std::int64_t const index = s.queries.at(i), first = s.window > 0 ? s.keys.below(index + 1 - s.window) : 0;
      if (first < s.keys.below(index + 1)) {
        ASSERT_LE(b.key0, first);
        ASSERT_GE(b.key0 + b.keys, s.keys.below(index + 1));
      }
    }
    ASSERT_LE(b.key0 + b.keys, s.keys.size());
    ASSERT_LE(sums + bytes_of<S>(blocks.kv_heads() * blocks.members() * b.queries, b.keys, s.head_dim, s.value_dim),
              promised);
    query += b.queries;
    ++count;
  }
  ASSERT_EQ(query, s.queries.size());
  if (count > 1) kinds.insert("queries");
  if (blocks.kv_heads() < s.kv_heads && blocks.kv_heads() > 1) kinds.insert("some heads of keys");
  if (blocks.kv_heads() == 1 && s.kv_heads > 1 && blocks.members() == group) kinds.insert("one head of keys");
  if (blocks.members() < group && blocks.members() > 1) kinds.insert("some members");
  if (blocks.members() == 1 && group > 1) kinds.insert("one member");
}

TEST(AttentionBlocksOfDevices, HoldWhatTheyNeedInTheMemoryThatIsPromised) {
  auto const before = kernels::attention_block_bytes;
  std::set<std::string> kinds;
  for (std::int64_t const most : {std::int64_t{1}, std::int64_t{1} << 16, std::int64_t{1} << 20, std::int64_t{1} << 26})
    for (auto const& [heads, kv_heads] : {std::pair(1, 1), {6, 2}, {32, 4}, {8, 8}, {9, 1}})
      for (auto const& [dim, values] : {std::pair<std::int64_t, std::int64_t>(8, 8), {128, 128}, {192, 128}, {8, 200}})
        for (std::int64_t window : {0, 1, 700}) {
          kernels::attention_block_bytes = most;
          TokenSet const all = TokenSet::range(0, 3000), zigzag{{{300, 450}, {2250, 700}}, 1},
                         striped{{{2, 1000}, {}}, 3};
          auto const of = [&, h = heads, kv = kv_heads, d = dim, v = values](TokenSet const& q, TokenSet const& k) {
            return shape_of(q, k, h, kv, d, v, window);
          };
          // As the plan has it: without windows, for the longest.
          auto largest = of(all, all);
          largest.window = 0;
          std::int64_t const narrow = AttentionBlocks<bfloat16>::scratch_bytes(largest),
                             wide = AttentionBlocks<double>::scratch_bytes(largest);
          for (auto const& q : {all, zigzag, striped, TokenSet::range(17, 33), TokenSet::range(900, 2500)})
            for (auto const& k : {all, zigzag, striped, TokenSet::range(17, 33), TokenSet::range(2000, 2100)}) {
              SCOPED_TRACE(std::to_string(most) + " bytes, " + std::to_string(heads) + " heads, window " +
                           std::to_string(window));
              check<bfloat16>(of(q, k), narrow, kinds);
              check<double>(of(q, k), wide, kinds);
            }
        }
  kernels::attention_block_bytes = before;
  EXPECT_EQ(kinds.size(), 5U) << "every way to cut came up";
}

TEST(AttentionBlocksOfDevices, AreBoundedAndLongOnesHaveNoMoreThanTheyNeed) {
  auto const before = kernels::attention_block_bytes;
  kernels::attention_block_bytes = std::int64_t{1} << 26;
  auto const scratch = [](std::int64_t tokens) {
    auto const all = TokenSet::range(0, tokens);
    return AttentionBlocks<bfloat16>::scratch_bytes(shape_of(all, all, 32, 8, 128, 128, 0));
  };
  EXPECT_LT(scratch(2048), std::int64_t{140} << 20);
  EXPECT_EQ(scratch(8192), scratch(32768)) << "bounded";
  EXPECT_LT(scratch(64), std::int64_t{6} << 20) << "no more than all scores at once";
  // 16 queries of one head are the least.
  EXPECT_LT(scratch(1 << 20), (std::int64_t{1} << 20) * (16 * 8 + 2 * 128 * 4) + (std::int64_t{1} << 20));
  kernels::attention_block_bytes = before;
}

TEST(AttentionScratch, ThatIsTooSmallIsRefused) {
  Case const c{1, 4, 2, 2, 8, 0.0};
  Owned2<double> const qkv("p3d::test::qkv", 4, 48), out("p3d::test::out", 4, 16);
  Owned1<double> const lse("p3d::test::lse", 8);
  Parts<double const> const in(c, View2<double const>(qkv));
  expect_error(
      [&] {
        kernels::attention_forward<double>(ExecSpace(), c.shape(), {}, {}, in.q, in.k, in.v, kernels::Store::overwrite,
                                           kernels::heads_of(View2<double>(out)), lse);
      },
      "the scratch memory of attention is large enough");
}

TEST(Teams, MoreThanKokkosCountsAreRefused) {
  EXPECT_EQ(kernels::team_count(2147483647), 2147483647);
  EXPECT_THROW((void)kernels::team_count(std::int64_t{1} << 31), p3d::base::Error);
  EXPECT_THROW((void)kernels::team_count((std::int64_t{1} << 32) + 5), p3d::base::Error);
}

}  // namespace attention_test
