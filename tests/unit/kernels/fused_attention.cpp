// SPDX-License-Identifier: Apache-2.0
// Which calls of attention go to a vendor's library, in which pieces, and that each gets what it should: a library of
// this test stands in for it, on the host.

#include "attention_case.hpp"

#include <p3d/kernels/fused_attention.hpp>

#include <kernels/attention_fused.hpp>
#include <support/fused_loops.hpp>

#include <memory>

namespace attention_test {

namespace {

using kernels::FusedCall;
using p3d::test::FusedLoops;

template <class S>
struct Use {
  std::shared_ptr<FusedLoops<S>> library = std::make_shared<FusedLoops<S>>();
  Use() { kernels::set_fused_attention(library); }
  ~Use() { kernels::set_fused_attention(nullptr); }
};

}  // namespace

TEST(FusedAttention, TakesWholeSamplesInSixteenBits) {
  for (std::int64_t window : {0, 9})
    for (std::int64_t values : {16, 8, 24}) {
      auto c = with_values({2, 33, 4, 2, 16, 0.0}, values);
      c.window = window;
      Use<bfloat16> const bf16;
      expect_plain<bfloat16>(c);
      EXPECT_FALSE(bf16.library->pieces.empty());
      Use<float16> const fp16;
      expect_plain<float16>(c);
      EXPECT_FALSE(fp16.library->pieces.empty());
    }
}

TEST(FusedAttention, TakesDocumentsAndCaps) {
  for (std::int64_t window : {0, 2})
    for (double cap : {0.0, 0.75}) {
      auto c = with_cap({2, 6, 2, 1, 8, 0.0}, cap);
      c.window = window;
      c.documents = {0, 0, 0, 3, 3, 3, 0, 1, 1, 1, 1, 5};
      Use<bfloat16> const use;
      expect_plain<bfloat16>(c);
      EXPECT_EQ(use.library->pieces.size(), 2U);
    }
}

TEST(FusedAttention, LeavesOtherCallsToP3d) {
  Use<bfloat16> const use;
  expect_plain<bfloat16>(Case{2, 33, 4, 2, 16, 0.3});  // dropout
  expect_plain<bfloat16>(Case{1, 7, 2, 2, 6, 0.0});    // rows that are not on 16 bytes
  EXPECT_EQ(kernels::fused_attention_refusal(), "rows are not on 16 bytes");
  expect_plain<bfloat16>(with_values({1, 7, 2, 2, 8, 0.0}, 6));
  EXPECT_EQ(kernels::fused_attention_refusal(), "rows are not on 16 bytes");
  expect_plain<bfloat16>(Case{1, 7, 1, 1, 72, 0.0});
  EXPECT_EQ(kernels::fused_attention_refusal(), "no more than 64");
  EXPECT_TRUE(use.library->pieces.empty());
}

TEST(FusedAttention, IsCutIntoPiecesThatFit) {
  FusedLoops<bfloat16> library(2);
  FusedCall::Shape shape;
  shape.samples = 4, shape.seq_len = 10, shape.heads = 12, shape.kv_heads = 6;
  shape.head_dim = 16, shape.value_dim = 8;
  auto const cut = [&](std::int64_t bytes) {
    auto const c = kernels::cut_fused(library, shape, true, bytes);
    return c ? std::pair(c->samples, c->kv_heads) : std::pair<std::int64_t, std::int64_t>(0, 0);
  };
  using P = std::pair<std::int64_t, std::int64_t>;
  std::int64_t const head = 2 * 10 * 10;
  EXPECT_EQ(cut(48 * head), P(4, 6));
  EXPECT_EQ(cut(48 * head - 1), P(2, 6));
  EXPECT_EQ(cut(12 * head), P(1, 6));
  EXPECT_EQ(cut(11 * head), P(1, 3));
  EXPECT_EQ(cut(5 * head), P(1, 2));
  EXPECT_EQ(cut(2 * head), P(1, 1));
  EXPECT_EQ(cut(2 * head - 1), P(0, 0));
  shape.head_dim = 72;
  EXPECT_EQ(cut(1 << 30), P(0, 0));
  EXPECT_EQ(library.refusal(), "no more than 64");
}

TEST(FusedAttention, PiecesBeginOnSixteenBytes) {
  FusedLoops<bfloat16> library(2);
  FusedCall call;
  call.samples = 2, call.seq_len = 9, call.heads = call.kv_heads = 1, call.head_dim = call.value_dim = 8;
  call.workspace_bytes = 2 * 81;
  EXPECT_FALSE(kernels::run_fused(library, call, false));
  EXPECT_EQ(kernels::fused_attention_refusal(), "numbers of a piece's tokens are not on 16 bytes");
  EXPECT_TRUE(library.pieces.empty());
}

TEST(FusedAttention, PiecesGiveTheNumbersOfTheWhole) {
  auto c = with_values({4, 12, 4, 2, 8, 0.0}, 16);
  for (int first : {0, 2, 4, 6})  // another second document in each sample
    for (int i = 0; i < 12; ++i) c.documents.push_back(i < first ? 0 : first);
  auto const documents = ints_of(c.documents);
  auto const qkv = rounded<bfloat16>(random_values("qkv", c.rows() * c.width()));
  auto const x = matrix_of<bfloat16>(c.rows(), c.width(), qkv);
  FusedLoops<bfloat16> library(2);
  auto const run = [&](std::int64_t bytes) {
    Owned2<bfloat16> const out("p3d::test::out", c.rows(), c.out_width());
    Owned1<float> const lse("p3d::test::lse", c.rows() * c.heads);
    FusedCall call;
    call.samples = c.samples, call.seq_len = c.seq, call.heads = c.heads, call.kv_heads = c.kv_heads;
    call.head_dim = c.dim, call.value_dim = c.values(), call.scale = 0.25, call.lse = lse.data(),
    call.documents = documents.data(), call.workspace_bytes = bytes;
    Parts<bfloat16> const in(c, x);
    auto const y = kernels::heads_of<bfloat16>(out);
    call.q = {in.q.data, in.q.stride}, call.k = {in.k.data, in.k.stride}, call.v = {in.v.data, in.v.stride};
    call.out = {y.data, y.stride};
    library.pieces.clear();
    EXPECT_TRUE(kernels::run_fused(library, call, false));
    return std::pair(host(out), host(lse));
  };
  auto const whole = run(1 << 20);
  EXPECT_EQ(library.pieces.size(), 1U);
  EXPECT_EQ(run(2 * 2 * 4 * 144), whole);
  EXPECT_EQ(library.pieces.size(), 2U);
  EXPECT_EQ(run(2 * 2 * 144), whole);
  EXPECT_EQ(library.pieces.size(), 8U);
}

TEST(FusedAttention, IsInNoBuildWithoutALibrary) {
  if (!kernels::fused_attention_name().empty()) GTEST_SKIP() << "this build has " << kernels::fused_attention_name();
  kernels::use_fused_attention(true);
  EXPECT_EQ(kernels::fused_attention(), nullptr);
}

}  // namespace attention_test
