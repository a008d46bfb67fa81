// SPDX-License-Identifier: Apache-2.0
// Cross entropy: against softmax written out, finite differences, padding, uncounted rows, and shards put together.

#include "support.hpp"

#include <p3d/kernels/cross_entropy.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace cross_entropy_test {

constexpr std::int64_t rows = 6, vocabulary = 205, padded = 208;
std::vector<int> const targets = {0, 204, -1, 17, 100, 131};  // first, last, uncounted

/// Logits [rows, padded] with large numbers in the padding, where they would show.
Vec make_logits() {
  auto x = random_values("logits", rows * padded, 3.0);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = vocabulary; c < padded; ++c) x[r * padded + c] = 50.0;
  return x;
}
Vec const logits = make_logits();

struct Result {
  double loss;
  Vec lse, gradient;
};
/// The vocabulary split into shards at the columns of `cuts`, as parallel ranks would do it; logits have a cap.
template <class T>
Result run(Vec const& x, std::vector<std::int64_t> const& cuts, double scale, double cap = 0.0) {
  auto const t = ints_of(targets);
  std::vector<Owned2<T>> parts;
  std::vector<Owned2<Acc<T>>> partials;
  std::vector<Owned1<Acc<T>>> tops;
  Vec max(rows, -std::numeric_limits<double>::infinity()), sums(2 * rows, 0.0);
  auto const last = [&](std::size_t s) { return s + 2 == cuts.size(); };
  auto const valid = [&](std::size_t s) { return last(s) ? vocabulary - cuts[s] : cuts[s + 1] - cuts[s]; };
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    Vec part;
    for (std::int64_t r = 0; r < rows; ++r)
      part.insert(part.end(), x.begin() + r * padded + cuts[s], x.begin() + r * padded + cuts[s + 1]);
    parts.push_back(matrix_of<T>(rows, cuts[s + 1] - cuts[s], part));
    kernels::cap_logits<T>(ExecSpace(), cap, parts.back());
    Owned1<Acc<T>> const top("p3d::test::max", rows), copy("p3d::test::copy", rows);
    Owned2<Acc<T>> const partial("p3d::test::sums", 2, rows);
    kernels::logits_parts<T>(ExecSpace(), parts.back(), valid(s), cuts[s], t, top, copy, partial);
    auto const h = host(top);
    EXPECT_EQ(h, host(copy));
    tops.push_back(top);
    partials.push_back(partial);
    for (std::int64_t r = 0; r < rows; ++r) max[r] = std::max(max[r], h[r]);
  }
  auto const row_max = vector_of<Acc<T>>(max);
  for (std::size_t s = 0; s < parts.size(); ++s) {
    kernels::refer_sums<Acc<T>>(ExecSpace(), tops[s], row_max, partials[s]);
    sums = plus(sums, host(partials[s]));
  }
  // The parts of all at once.
  Vec together;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    Owned1<Acc<T>> const top("p3d::test::max", rows);
    Owned2<Acc<T>> const partial("p3d::test::sums", 2, rows);
    kernels::logits_parts<T>(ExecSpace(), parts[s], valid(s), cuts[s], t, top, top, partial);
    for (auto const& piece : {host(top), host(partial)}) together.insert(together.end(), piece.begin(), piece.end());
  }
  Owned1<Acc<T>> const combined_max("p3d::test::max", rows);
  Owned2<Acc<T>> const combined("p3d::test::sums", 2, rows);
  kernels::combine_parts<Acc<T>>(ExecSpace(), static_cast<int>(parts.size()), vector_of<Acc<T>>(together), combined_max,
                                 combined);
  EXPECT_EQ(host(combined_max), max);
  expect_close(host(combined), sums, std::is_same_v<Acc<T>, double> ? 1e-14 : 1e-6, "combined sums");
  Owned1<Acc<T>> const lse("p3d::test::lse", rows);
  double const loss = sum_of([&](View1<double> total) {
    kernels::cross_entropy_loss<Acc<T>>(ExecSpace(), t, row_max, matrix_of<Acc<T>>(2, rows, sums), lse, total);
  });
  Vec gradient(rows * padded);
  for (std::size_t s = 0; s < parts.size(); ++s) {
    kernels::cross_entropy_backward<T>(ExecSpace(), t, lse, valid(s), cuts[s], static_cast<Acc<T>>(scale), parts[s],
                                       cap);
    auto const h = host(parts[s]);
    auto const width = cuts[s + 1] - cuts[s];
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy(h.begin() + r * width, h.begin() + (r + 1) * width, gradient.begin() + r * padded + cuts[s]);
  }
  return {loss, host(lse), gradient};
}

Result plain(Vec const& x, double scale) {
  Result p{0.0, Vec(rows), Vec(rows * padded, 0.0)};
  for (std::int64_t r = 0; r < rows; ++r) {
    long double sum = 0;
    for (std::int64_t c = 0; c < vocabulary; ++c) sum += std::exp(static_cast<long double>(x[r * padded + c]));
    p.lse[r] = static_cast<double>(std::log(sum));
    if (targets[r] < 0) continue;
    p.loss += p.lse[r] - x[r * padded + targets[r]];
    for (std::int64_t c = 0; c < vocabulary; ++c)
      p.gradient[r * padded + c] = scale * (std::exp(x[r * padded + c] - p.lse[r]) - (c == targets[r] ? 1.0 : 0.0));
  }
  return p;
}

/// The logits with their cap.
Vec capped(Vec x, double cap) {
  for (double& v : x) v = cap * std::tanh(v / cap);
  return x;
}
/// The gradient of logits before their cap, for that of logits z behind it.
Vec before_cap(Vec gradient, Vec const& z, double cap) {
  for (std::size_t i = 0; i < z.size(); ++i) gradient[i] *= 1.0 - std::pow(z[i] / cap, 2);
  return gradient;
}

class CrossEntropy : public ::testing::TestWithParam<std::vector<std::int64_t>> {};

TEST_P(CrossEntropy, MatchesSoftmaxWrittenOut) {
  auto const expected = plain(logits, 0.125);
  auto const d = run<double>(logits, GetParam(), 0.125);
  EXPECT_NEAR(d.loss, expected.loss, 1e-12);
  expect_close(d.lse, expected.lse, 1e-14, "lse");
  expect_close(d.gradient, expected.gradient, 1e-15, "gradient");
  auto const f = run<float>(logits, GetParam(), 0.125);
  EXPECT_NEAR(f.loss, expected.loss, 1e-5);
  expect_close(f.lse, expected.lse, 1e-6, "lse");
  expect_close(f.gradient, expected.gradient, 1e-6, "gradient");
}

TEST_P(CrossEntropy, PaddingAndUncountedRowsHaveNoGradient) {
  auto const g = run<double>(logits, GetParam(), 0.125).gradient;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = targets[r] < 0 ? 0 : vocabulary; c < padded; ++c)
      EXPECT_EQ(g[r * padded + c], 0.0) << r << ", " << c;
}

/// Of a divided vocabulary finite differences are taken of fewer elements.
std::size_t every(std::vector<std::int64_t> const& cuts) { return cuts.size() == 2 ? 1 : 11; }

TEST_P(CrossEntropy, BackwardMatchesFiniteDifferences) {
  auto const cuts = GetParam();
  expect_gradient([&](Vec const& v) { return run<double>(v, cuts, 1.0).loss; }, logits,
                  run<double>(logits, cuts, 1.0).gradient, "dlogits", 1e-8, every(cuts));
}

constexpr double cap = 2.5;  // of logits that reach 9

TEST_P(CrossEntropy, CappedMatchesSoftmaxWrittenOut) {
  auto const z = capped(logits, cap);
  auto const expected = plain(z, 0.125);
  auto const gradient = before_cap(expected.gradient, z, cap);
  auto const d = run<double>(logits, GetParam(), 0.125, cap);
  EXPECT_NEAR(d.loss, expected.loss, 1e-12);
  expect_close(d.gradient, gradient, 1e-15, "gradient");
  auto const f = run<float>(logits, GetParam(), 0.125, cap);
  EXPECT_NEAR(f.loss, expected.loss, 1e-5);
  expect_close(f.gradient, gradient, 1e-6, "gradient");
}

TEST_P(CrossEntropy, CappedBackwardMatchesFiniteDifferences) {
  auto const cuts = GetParam();
  expect_gradient([&](Vec const& v) { return run<double>(v, cuts, 1.0, cap).loss; }, logits,
                  run<double>(logits, cuts, 1.0, cap).gradient, "dlogits", 1e-8, every(cuts));
}

template <class S>
void check_capped_16_bits(std::vector<std::int64_t> const& cuts) {
  auto const x = rounded<S>(logits), z = rounded<S>(capped(x, cap));
  auto const found = run<S>(x, cuts, 0.125, cap), expected = plain(z, 0.125);
  EXPECT_NEAR(found.loss, expected.loss, 0.02);  // a logit may be rounded to the other neighbour
  expect_rounded<S>(found.gradient, before_cap(expected.gradient, z, cap), "gradient", 1e-3);
}
TEST_P(CrossEntropy, CappedIn16BitsIsTheOneInDoubleRoundedTwice) {
  check_capped_16_bits<bfloat16>(GetParam());
  check_capped_16_bits<float16>(GetParam());
}

TEST(CrossEntropyCap, OfZeroChangesNothing) {
  auto const x = matrix_of<double>(rows, padded, logits);
  kernels::cap_logits<double>(ExecSpace(), 0.0, x);
  expect_same(host(x), logits, "logits");
}

template <class S>
void check_16_bits(std::vector<std::int64_t> const& cuts) {
  Vec x = logits;
  x[0] = 14.0;  // targets that are nearly certain: p - 1 must not come from a rounded p
  x[3 * padded + 17] = 13.0;
  x = rounded<S>(x);
  for (double scale : {0.125, 65536.0 / 12}) {
    auto const found = run<S>(x, cuts, scale), expected = plain(x, scale);
    EXPECT_NEAR(found.loss, expected.loss, 1e-5);
    expect_close(found.lse, expected.lse, 1e-6, "lse");
    expect_rounded<S>(found.gradient, expected.gradient, "gradient", 1e-6);
  }
}
TEST_P(CrossEntropy, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>(GetParam());
  check_16_bits<float16>(GetParam());
}

// One shard; uneven ones; one that holds only padding.
INSTANTIATE_TEST_SUITE_P(Shards, CrossEntropy,
                         ::testing::Values(std::vector<std::int64_t>{0, padded},
                                           std::vector<std::int64_t>{0, 100, padded},
                                           std::vector<std::int64_t>{0, 3, 130, padded},
                                           std::vector<std::int64_t>{0, 205, padded}));

// Rows longer than what is kept in cache, with maxima that rise, fall and stay from one part to the next.
template <class T>
void check_long_rows(double tolerance) {
  constexpr std::int64_t n = 3, columns = 9001;
  Vec x = random_values("long logits", n * columns);
  for (std::int64_t c = 0; c < columns; ++c) {
    x[c] += 0.01 * static_cast<double>(c);
    x[columns + c] -= 0.01 * static_cast<double>(c);
  }
  auto const t = ints_of({0, 8999, 4096});
  Owned1<T> const top("p3d::test::max", n), copy("p3d::test::copy", n), lse("p3d::test::lse", n);
  Owned2<T> const sums("p3d::test::sums", 2, n);
  kernels::logits_parts<T>(ExecSpace(), matrix_of<T>(n, columns, x), columns, 0, t, top, copy, sums);
  double const loss =
      sum_of([&](View1<double> total) { kernels::cross_entropy_loss<T>(ExecSpace(), t, copy, sums, lse, total); });
  double expected = -x[0] - x[columns + 8999] - x[2 * columns + 4096];
  for (std::int64_t r = 0; r < n; ++r) {
    long double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(static_cast<long double>(x[r * columns + c]));
    EXPECT_NEAR(host(lse)[r], static_cast<double>(std::log(sum)), tolerance) << r;
    expected += static_cast<double>(std::log(sum));
  }
  EXPECT_NEAR(loss, expected, 3 * tolerance);
}
TEST(CrossEntropyLarge, RowsOfManyBlocks) {
  check_long_rows<double>(1e-13);
  check_long_rows<float>(2e-5);
}

TEST(CrossEntropyLarge, LogitsFarAboveTheRangeOfExp) {
  Vec x = logits;
  for (double& v : x) v += 2000.0;
  auto const f = run<float>(x, {0, padded}, 1.0);
  EXPECT_NEAR(f.loss, plain(logits, 1.0).loss, 5e-3);  // 2000 in float has a spacing of 1.2e-4
}

}  // namespace cross_entropy_test
