// SPDX-License-Identifier: Apache-2.0
// Token and position embedding: lookups, repeated tokens, shards of the vocabulary.

#include "support.hpp"

#include <p3d/kernels/embedding.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace embedding_test {

constexpr std::int64_t vocabulary = 11, hidden = 37, samples = 2, seq = 5, rows = samples * seq;
std::vector<int> const tokens = {3, 3, 0, 10, 4, 3, 10, 10, 1, 3};  // 3 and 10 several times; 4: first of a shard
Vec const weight = random_values("wte", vocabulary*hidden), dout = random_values("dout", rows*hidden),
          positions = random_values("wpe", 9 * hidden);

/// Rows [begin, end) of the vocabulary.
Vec shard(Vec const& w, std::int64_t begin, std::int64_t end) {
  return Vec(w.begin() + begin * hidden, w.begin() + end * hidden);
}

template <class T>
Vec forward(std::int64_t begin, std::int64_t end) {
  Owned2<T> const out("p3d::test::out", rows, hidden);
  Kokkos::deep_copy(out, T(99.0));
  kernels::embedding_forward<T>(ExecSpace(), ints_of(tokens),
                                matrix_of<T>(end - begin, hidden, shard(weight, begin, end)), begin, out);
  return host(out);
}
template <class T>
Vec backward(std::int64_t begin, std::int64_t end) {
  auto const dw = matrix_of<Acc<T>>(end - begin, hidden, shard(weight, begin, end));  // adds to what is there
  kernels::embedding_backward<T>(ExecSpace(), ints_of(tokens), matrix_of<T>(rows, hidden, dout), begin, dw);
  return host(dw);
}

template <class T>
void check(double tolerance) {
  Vec looked_up(rows * hidden), summed = weight;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < hidden; ++c) {
      looked_up[r * hidden + c] = weight[tokens[r] * hidden + c];
      summed[tokens[r] * hidden + c] += dout[r * hidden + c];
    }
  expect_close(forward<T>(0, vocabulary), looked_up, tolerance);
  expect_close(backward<T>(0, vocabulary), summed, tolerance);
  // Two shards: the sum of the lookups, the gradients side by side, bit for bit.
  expect_same(plus(forward<T>(0, 4), forward<T>(4, vocabulary)), forward<T>(0, vocabulary), "shards, forward");
  Vec parts = backward<T>(0, 4);
  auto const upper = backward<T>(4, vocabulary);
  parts.insert(parts.end(), upper.begin(), upper.end());
  expect_same(parts, backward<T>(0, vocabulary), "shards, backward");
}

template <class S>
void check_16_bits() {
  Vec const w = rounded<S>(weight), g = rounded<S>(dout);
  Vec looked_up(rows * hidden), summed = weight;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < hidden; ++c) {
      looked_up[r * hidden + c] = w[tokens[r] * hidden + c];
      summed[tokens[r] * hidden + c] += g[r * hidden + c];
    }
  expect_same(forward<S>(0, vocabulary), looked_up);
  expect_close(backward<S>(0, vocabulary), summed, 5e-7);  // float
  expect_same(plus(forward<S>(0, 4), forward<S>(4, vocabulary)), looked_up, "shards, forward");
}
TEST(Embedding, In16BitsIsExactAndSumsInFloat) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
}

TEST(Embedding, LooksUpAndSums) {
  check<double>(1e-15);
  check<float>(5e-7);
}

/// Some twice in a sample, as where documents begin anew.
struct GivenPositions {
  kernels::TokenRows shape{0, samples, seq};
  std::vector<int> place;
  decltype(ints_of({})) owner;
};
GivenPositions given_positions() {
  GivenPositions g;
  for (std::int64_t r = 0; r < rows; ++r) g.place.push_back(static_cast<int>((5 * r + 3) % 9));
  g.owner = ints_of(g.place);
  g.shape.positions = g.owner;
  return g;
}

template <class T>
void check_positions(double tolerance) {
  auto const [shape, place, owner] = given_positions();
  Vec expected = dout, summed = positions;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < hidden; ++c) {
      expected[r * hidden + c] += positions[place[r] * hidden + c];
      summed[place[r] * hidden + c] += dout[r * hidden + c];
    }
  auto const out = matrix_of<T>(rows, hidden, dout), g = matrix_of<T>(rows, hidden, dout);
  auto const p = matrix_of<T>(9, hidden, positions);
  auto const dp = matrix_of<Acc<T>>(9, hidden, positions);
  kernels::position_forward<T>(ExecSpace(), shape, p, out);
  kernels::position_backward<T>(ExecSpace(), shape, g, dp);
  expect_close(host(out), expected, tolerance);
  expect_close(host(dp), summed, tolerance);
}

// Rows cut anywhere: forward is that of all rows, and the parts of backward add up to it.
void check_some_rows(kernels::TokenRows const& all) {
  auto const p = matrix_of<double>(9, hidden, positions);
  auto const out = matrix_of<double>(rows, hidden, dout), dp = matrix_of<double>(9, hidden, Vec(9 * hidden, 0.0));
  kernels::position_forward<double>(ExecSpace(), all, p, out);
  kernels::position_backward<double>(ExecSpace(), all, matrix_of<double>(rows, hidden, dout), dp);
  auto const whole = host(out), gradient = host(dp);
  for (std::int64_t const cut : {1, 3, 5, 7, 9}) {
    auto const sum = matrix_of<double>(9, hidden, Vec(9 * hidden, 0.0));
    for (bool const first : {true, false}) {
      std::int64_t const begin = first ? 0 : cut, end = first ? cut : rows;
      auto const part = [&](Vec const& v) { return Vec(v.begin() + begin * hidden, v.begin() + end * hidden); };
      auto shape = all;
      shape.first_row = begin;
      auto const g = matrix_of<double>(end - begin, hidden, part(dout));
      kernels::position_backward<double>(ExecSpace(), shape, g, sum);
      kernels::position_forward<double>(ExecSpace(), shape, p, g);
      expect_same(host(g), part(whole));
    }
    expect_close(host(sum), gradient, 1e-15);
  }
}
TEST(Position, OfSomeRowsIsThatOfAll) {
  check_some_rows({0, samples, seq});
  auto const given = given_positions();
  check_some_rows(given.shape);
}

template <class S>
void check_positions_in_16_bits() {
  auto const [shape, place, owner] = given_positions();
  Vec const x = rounded<S>(dout), p = rounded<S>(positions);
  Vec expected = x, summed = positions;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < hidden; ++c) {
      expected[r * hidden + c] += p[place[r] * hidden + c];
      summed[place[r] * hidden + c] += x[r * hidden + c];
    }
  auto const out = matrix_of<S>(rows, hidden, x), g = matrix_of<S>(rows, hidden, x);
  auto const dp = matrix_of<float>(9, hidden, positions);
  kernels::position_forward<S>(ExecSpace(), shape, matrix_of<S>(9, hidden, p), out);
  kernels::position_backward<S>(ExecSpace(), shape, g, dp);
  expect_rounded<S>(host(out), expected);
  expect_close(host(dp), summed, 5e-7);
}
TEST(Position, In16BitsAddsInFloat) {
  check_positions_in_16_bits<bfloat16>();
  check_positions_in_16_bits<float16>();
}

TEST(Position, AddsAndSums) {
  check_positions<double>(1e-15);
  check_positions<float>(5e-7);
}

}  // namespace embedding_test
