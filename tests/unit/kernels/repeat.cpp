// SPDX-License-Identifier: Apache-2.0
// The same call twice gives the same bits, with as many threads as this run has (a race would show).

#include "attention_case.hpp"

#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/cross_entropy.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>
#include <p3d/kernels/norm.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace repeat_test {

constexpr std::int64_t rows = 96, hidden = 200;

/// Runs ten times, each time into fresh memory.
void expect_repeats(std::function<Vec()> const& run, std::string const& what) {
  auto const first = run();
  for (int i = 0; i < 9; ++i) expect_same(run(), first, what);
}

TEST(Repeat, Sums) {
  auto const x = matrix_of<float>(rows, hidden, random_values("x", rows * hidden));
  auto const flat = p3d::device::flat(View2<float const>(x));
  auto const long_one = vector_of<float>(random_values("long", 300000));
  expect_repeats([&] { return Vec{sum_squares<float>(long_one)}; }, "sum_squares");
  expect_repeats([&] { return Vec{sum_squares<float>(flat)}; }, "sum_squares, short");
  expect_repeats(
      [&] {
        Owned1<float> const b("p3d::test::b", hidden);
        kernels::bias_backward<float>(ExecSpace(), x, b);
        return host(b);
      },
      "bias_backward");
}

TEST(Repeat, EmbeddingBackwardWithTokensThatComeOften) {
  std::vector<int> tokens;
  for (int r = 0; r < rows; ++r) tokens.push_back(r * r % 5);
  auto const t = ints_of(tokens);
  auto const g = matrix_of<float>(rows, hidden, random_values("g", rows * hidden));
  expect_repeats(
      [&] {
        Owned2<float> const w("p3d::test::w", 5, hidden);
        kernels::embedding_backward<float>(ExecSpace(), t, g, 0, w);
        return host(w);
      },
      "embedding_backward");
}

TEST(Repeat, NormBackward) {
  auto const x = matrix_of<float>(rows, hidden, random_values("x", rows * hidden));
  auto const g = matrix_of<float>(rows, hidden, random_values("g", rows * hidden));
  auto const w = vector_of<float>(random_values("w", hidden)), one = vector_of<float>(Vec(rows, 0.9));
  expect_repeats(
      [&] {
        Owned2<float> const dx("p3d::test::dx", rows, hidden);
        Owned1<float> const dw("p3d::test::dw", hidden), db("p3d::test::db", hidden);
        kernels::layernorm_backward<float>(ExecSpace(), g, x, w, one, one, kernels::Store::add, dx, dw, db);
        auto all = host(dx);
        for (auto const& part : {host(dw), host(db)}) all.insert(all.end(), part.begin(), part.end());
        return all;
      },
      "layernorm_backward");
}

TEST(Repeat, AttentionWithDropout) {
  attention_test::Case const c{2, 150, 4, 2, 16, 0.2};
  auto const qkv = random_values("qkv", 300 * 128), dout = random_values("dout", 300 * 64);
  expect_repeats(
      [&] {
        auto const y = attention_test::forward<float>(c, qkv);
        auto all = y.out;
        auto const g = attention_test::backward<float>(c, qkv, dout, y);
        all.insert(all.end(), g.begin(), g.end());
        return all;
      },
      "attention");
}

TEST(Repeat, CrossEntropy) {
  std::vector<int> targets(rows, 3);
  auto const t = ints_of(targets);
  auto const logits = matrix_of<float>(rows, hidden, random_values("logits", rows * hidden));
  expect_repeats(
      [&] {
        Owned1<float> const max("p3d::test::max", rows), copy("p3d::test::copy", rows), lse("p3d::test::lse", rows);
        Owned2<float> const sums("p3d::test::sums", 2, rows);
        kernels::logits_parts<float>(ExecSpace(), logits, hidden, 0, t, max, copy, sums);
        return Vec{sum_of(
            [&](View1<double> total) { kernels::cross_entropy_loss<float>(ExecSpace(), t, max, sums, lse, total); })};
      },
      "loss");
}

}  // namespace repeat_test
