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

/// With the library's numbers, or the loops' of attention_case.hpp.
template <class S>
void expect_same(Case const& c) {
  auto const qkv = rounded<S>(random_values("qkv", c.rows() * c.width())),
             dout = rounded<S>(random_values("dout", c.rows() * c.out_width()));
  auto const found = forward<S>(c, qkv);
  auto const expected = plain(c, qkv);
  expect_close(found.out, expected.out, roundoff<S>, "out");
  expect_close(found.lse, expected.lse, 4e-6, "lse");
  Owned2<S> const dqkv("p3d::test::dqkv", c.rows(), c.width());
  auto const out = matrix_of<S>(c.rows(), c.out_width(), found.out), dy = matrix_of<S>(c.rows(), c.out_width(), dout),
             x = matrix_of<S>(c.rows(), c.width(), qkv);
  auto const lse = vector_of<Acc<S>>(found.lse);
  Owned1<Acc<S>> const delta("p3d::test::delta", c.rows() * c.heads);
  Parts<S const> const in(c, View2<S const>(x));
  Parts<S> const d(c, dqkv);
  auto const documents = ints_of(c.documents);
  auto shape = c.shape();
  shape.documents = documents;
  Scratch<S> const scratch(shape);
  auto const overwrite = kernels::Store::overwrite;
  kernels::attention_backward<S>(ExecSpace(), shape, c.dropout(), scratch, in.q, in.k, in.v,
                                 kernels::heads_of(View2<S const>(dy)), View1<Acc<S> const>(lse),
                                 View1<Acc<S> const>(delta), overwrite, d.q, overwrite, d.k, d.v,
                                 {{out.data(), static_cast<std::int64_t>(out.stride(0))}, View1<Acc<S>>(delta)});
  expect_close(host(dqkv), plain_gradient(c, qkv, dout), 3 * roundoff<S>, "dqkv");
}

}  // namespace

TEST(FusedAttention, TakesWholeSamplesInSixteenBits) {
  for (std::int64_t window : {0, 9})
    for (std::int64_t values : {16, 8, 24}) {
      auto c = with_values({2, 33, 4, 2, 16, 0.0}, values);
      c.window = window;
      Use<bfloat16> const bf16;
      expect_same<bfloat16>(c);
      EXPECT_FALSE(bf16.library->pieces.empty());
      Use<float16> const fp16;
      expect_same<float16>(c);
      EXPECT_FALSE(fp16.library->pieces.empty());
    }
}

TEST(FusedAttention, LeavesOtherCallsToP3d) {
  Use<bfloat16> const use;
  expect_same<bfloat16>(Case{2, 33, 4, 2, 16, 0.3});  // dropout
  Case documents{1, 6, 2, 1, 8, 0.0};
  documents.documents = {0, 0, 0, 3, 3, 3};
  expect_same<bfloat16>(documents);
  expect_same<bfloat16>(Case{1, 7, 2, 2, 6, 0.0});  // rows that are not on 16 bytes
  EXPECT_EQ(kernels::fused_attention_refusal(), "rows are not on 16 bytes");
  expect_same<bfloat16>(with_values({1, 7, 2, 2, 8, 0.0}, 6));
  EXPECT_EQ(kernels::fused_attention_refusal(), "rows are not on 16 bytes");
  expect_same<bfloat16>(Case{1, 7, 1, 1, 72, 0.0});
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

TEST(FusedAttention, PiecesGiveTheNumbersOfTheWhole) {
  auto const c = with_values({4, 9, 4, 2, 8, 0.0}, 16);
  auto const qkv = rounded<bfloat16>(random_values("qkv", c.rows() * c.width()));
  auto const x = matrix_of<bfloat16>(c.rows(), c.width(), qkv);
  FusedLoops<bfloat16> library(2);
  auto const run = [&](std::int64_t bytes) {
    Owned2<bfloat16> const out("p3d::test::out", c.rows(), c.out_width());
    Owned1<float> const lse("p3d::test::lse", c.rows() * c.heads);
    FusedCall call;
    call.samples = c.samples, call.seq_len = c.seq, call.heads = c.heads, call.kv_heads = c.kv_heads;
    call.head_dim = c.dim, call.value_dim = c.values(), call.scale = 0.25, call.lse = lse.data(),
    call.workspace_bytes = bytes;
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
  EXPECT_EQ(run(2 * 2 * 4 * 81), whole);
  EXPECT_EQ(library.pieces.size(), 2U);
  EXPECT_EQ(run(2 * 2 * 81), whole);
  EXPECT_EQ(library.pieces.size(), 8U);
}

TEST(FusedAttention, IsInNoBuildWithoutALibrary) {
  if (!kernels::fused_attention_name().empty()) GTEST_SKIP() << "this build has " << kernels::fused_attention_name();
  kernels::use_fused_attention(true);
  EXPECT_EQ(kernels::fused_attention(), nullptr);
}

}  // namespace attention_test
