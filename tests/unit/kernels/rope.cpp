// SPDX-License-Identifier: Apache-2.0
// Rotary embedding: the rotation written with complex numbers, its transpose, and that scores see only distances.

#include "support.hpp"

#include <support/errors.hpp>

#include <p3d/base/error.hpp>
#include <p3d/kernels/rope.hpp>

#include <complex>

using namespace p3d::test;
namespace kernels = p3d::kernels;
using kernels::Rotation;

namespace rope_test {

constexpr std::int64_t samples = 2, seq = 7, heads = 3, dim = 10, width = 34;  // 4 columns behind the heads stay
kernels::TokenRows const rows{5, samples, seq};
constexpr double theta = 10000.0;

Vec frequencies() {
  Vec f;
  for (std::int64_t i = 0; i < dim / 2; ++i) f.push_back(std::pow(theta, -2.0 * i / dim));
  return f;
}

/// offset 0: the rows' own positions; else they are given, and those of the second sample begin 100 further on.
int position(std::int64_t row, std::int64_t offset) {
  return static_cast<int>(row % seq + offset + (offset > 0 ? 100 * (row / seq) : 0));
}

template <class T>
Vec rotate(Vec const& x, Rotation rotation, std::int64_t offset) {
  auto const d = matrix_of<T>(samples * seq, width, x);
  std::vector<int> given;
  for (std::int64_t r = 0; r < samples * seq && offset > 0; ++r) given.push_back(position(r, offset));
  auto const places = ints_of(given);
  auto at = rows;
  at.positions = places;
  kernels::rope<T>(ExecSpace(), at, {heads, dim}, matrix_of<double>(1, dim / 2, frequencies()), rotation, d);
  return host(d);
}

Vec plain(Vec x, std::int64_t offset) {
  for (std::int64_t r = 0; r < samples * seq; ++r)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        double& a = x[r * width + h * dim + i];
        double& b = x[r * width + h * dim + i + dim / 2];
        double const angle = position(r, offset) * std::pow(theta, -2.0 * i / dim);
        auto const z = std::complex<double>(a, b) * std::polar(1.0, angle);
        a = z.real();
        b = z.imag();
      }
  return x;
}

Vec const x = random_values("rope x", samples*seq*width), dy = random_values("rope dy", samples*seq*width);

TEST(Rope, MatchesComplexNumbers) {
  for (std::int64_t offset : {0, 1000}) {
    expect_close(rotate<double>(x, Rotation::forward, offset), plain(x, offset), 1e-12);
    expect_close(rotate<float>(x, Rotation::forward, offset), plain(x, offset), 1e-6);
  }
}

template <class S>
void check_16_bits() {
  auto const v = rounded<S>(x);
  for (std::int64_t offset : {1000, 1000000})
    for (Rotation rotation : {Rotation::forward, Rotation::backward})
      expect_rounded<S>(rotate<S>(v, rotation, offset), rotate<double>(v, rotation, offset));
}
TEST(Rope, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
}

TEST(Rope, BackwardIsTheTransposeAndTheInverse) {
  auto const y = rotate<double>(x, Rotation::forward, 3), dx = rotate<double>(dy, Rotation::backward, 3);
  EXPECT_NEAR(dot(y, dy), dot(x, dx), 1e-10);
  expect_close(rotate<double>(y, Rotation::backward, 3), x, 1e-13);
  expect_gradient([&](Vec const& v) { return dot(rotate<double>(v, Rotation::forward, 3), dy); }, x, dx, "dx");
}

TEST(Rope, ScoresSeeDistancesOnly) {
  auto const score = [](Vec const& v, std::int64_t i, std::int64_t j) {  // head 0 of row i with head 1 of row j
    double s = 0;
    for (std::int64_t d = 0; d < dim; ++d) s += v[i * width + d] * v[j * width + dim + d];
    return s;
  };
  auto const here = rotate<double>(x, Rotation::forward, 0), there = rotate<double>(x, Rotation::forward, 55);
  EXPECT_NEAR(score(here, 5, 2), score(there, 5, 2), 1e-11);
}

TEST(Rope, PairsOfNeighboursAndPartsOfAHead) {
  // The first 6 of a head's 10 dimensions rotate.
  constexpr std::int64_t rotary = 6;
  Vec f;
  for (std::int64_t i = 0; i < rotary / 2; ++i) f.push_back(std::pow(theta, -2.0 * i / rotary));
  for (auto const pairs : {kernels::RopePairs::halves, kernels::RopePairs::neighbours}) {
    bool const halves = pairs == kernels::RopePairs::halves;
    auto const run = [&](auto zero, Vec const& from, Rotation rotation) {
      using T = decltype(zero);
      auto const d = matrix_of<T>(samples * seq, width, from);
      kernels::rope<T>(ExecSpace(), rows, {heads, dim, pairs}, matrix_of<double>(1, rotary / 2, f), rotation, d);
      return host(d);
    };
    auto expected = x;
    for (std::int64_t r = 0; r < samples * seq; ++r)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < rotary / 2; ++i) {
          double& a = expected[r * width + h * dim + (halves ? i : 2 * i)];
          double& b = expected[r * width + h * dim + (halves ? i + rotary / 2 : 2 * i + 1)];
          auto const z = std::complex<double>(a, b) * std::polar(1.0, position(r, 0) * f[i]);
          a = z.real();
          b = z.imag();
        }
    auto const y = run(0.0, x, Rotation::forward);
    expect_close(y, expected, 1e-12);
    expect_close(run(0.0F, x, Rotation::forward), expected, 1e-6);
    expect_close(run(0.0, y, Rotation::backward), x, 1e-13);
    EXPECT_NEAR(dot(y, dy), dot(x, run(0.0, dy, Rotation::backward)), 1e-10);
  }
}

TEST(Rope, QueriesMayGrowWithTheirPosition) {
  constexpr std::int64_t queries = 2, length = 3;
  constexpr double beta = 0.4;
  for (auto const pairs : {kernels::RopePairs::halves, kernels::RopePairs::neighbours})
    for (auto const rotation : {Rotation::forward, Rotation::backward}) {
      auto const run = [&](kernels::RopeShape const& shape) {
        auto const d = matrix_of<double>(samples * seq, width, x);
        kernels::rope<double>(ExecSpace(), rows, shape, matrix_of<double>(1, dim / 2, frequencies()), rotation, d);
        return host(d);
      };
      auto expected = run({heads, dim, pairs});
      for (std::int64_t r = 0; r < samples * seq; ++r)
        for (std::int64_t i = 0; i < queries * dim; ++i)
          expected[r * width + i] *= 1.0 + beta * std::log(1.0 + static_cast<double>(r % seq / length));
      expect_close(run({heads, dim, pairs, 1.0, beta, queries, length}), expected, 1e-14);
    }
}

TEST(Rope, PositionsFromOneOnTakeTheSecondSet) {
  Vec const first = frequencies();
  Vec second;
  for (double f : first) second.push_back(f / 3.0);
  auto const run = [&](Vec const& f, std::int64_t sets, std::int64_t from) {
    auto const d = matrix_of<double>(samples * seq, width, x);
    kernels::RopeShape shape{heads, dim};
    shape.second_set_from = from;
    kernels::rope<double>(ExecSpace(), rows, shape, matrix_of<double>(sets, dim / 2, f), Rotation::forward, d);
    return host(d);
  };
  auto const one = run(first, 1, 0), other = run(second, 1, 0);
  auto both = first;
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(run(both, 2, 0), other);
  EXPECT_EQ(run(both, 2, kernels::RopeShape{}.second_set_from), one);
  auto expected = one;
  for (std::int64_t r = 0; r < samples * seq; ++r)
    if (r % seq >= 4) std::copy_n(other.begin() + r * width, width, expected.begin() + r * width);
  EXPECT_EQ(run(both, 2, 4), expected);
}

TEST(Rope, MorePairsThanAHeadHasAreRefused) {
  auto const d = matrix_of<double>(samples * seq, width, x);
  auto const f = matrix_of<double>(1, dim / 2, frequencies());
  expect_error(
      [&] {
        kernels::rope<double>(ExecSpace(), rows, {2, 8}, f, Rotation::forward, d);
      },
      "a head has the dimensions of all pairs");
}

}  // namespace rope_test
