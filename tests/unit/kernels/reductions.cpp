// SPDX-License-Identifier: Apache-2.0
// Sums, counts and fills over long vectors.

#include "support.hpp"

#include <p3d/base/error.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <limits>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace reductions_test {

TEST(SumSquares, MatchesALongDoubleSum) {
  for (std::int64_t n : {0, 1, 31, 4096, 4097, 100003}) {
    auto const x = random_values("x", n);
    EXPECT_NEAR(sum_squares<double>(vector_of<double>(x)), dot(x, x), 1e-14 * (1.0 + dot(x, x)));
    auto const f = vector_of<float>(x);
    auto const rounded = host(f);  // float input, but accumulated in double
    EXPECT_NEAR(sum_squares<float>(f), dot(rounded, rounded), 1e-14 * (1.0 + dot(x, x)));
  }
}

TEST(SumSquares, MoreElementsThanFullBlocks) {
  std::int64_t const n = 1024 * 4096 + 12345;
  Owned1<float> const x("p3d::test::x", n);
  kernels::fill<float>(ExecSpace(), x, 2.0f);
  EXPECT_EQ(sum_squares<float>(x), 4.0 * static_cast<double>(n));
}

TEST(SumSquares, OfSegmentsHasTheBitsOfOneCallEach) {
  // More segments than one launch takes, some of them empty, some of several blocks; a gap behind each.
  std::vector<kernels::Segment> segments;
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < 150; ++i) {
    std::int64_t const count = i % 7 == 3 ? 0 : i % 50 == 1 ? 9000 + i : 3 * i + 1;
    segments.push_back({n, count});
    n += count + 2;
  }
  auto const x = vector_of<float>(random_values("x", n));
  double expected = 0;
  for (auto const& s : segments)
    expected += sum_squares<float>(View1<float const>(Kokkos::subview(x, Kokkos::pair(s.begin, s.begin + s.count))));
  auto const found = [&](std::vector<kernels::Segment> const& of) {
    return sum_of([&](View1<double> sum) { kernels::add_sum_squares<float>(ExecSpace(), x, of, sum); });
  };
  EXPECT_EQ(found(segments), expected);
  EXPECT_EQ(found({}), 0.0);
}

TEST(Sums, AddUpUntilTheyAreTaken) {
  Owned1<double> const sums("p3d::test::sums", 2);
  auto const second = Kokkos::subview(sums, Kokkos::pair(1, 2));
  auto const x = vector_of<float>({3.0, 4.0});
  for (int i = 0; i < 2; ++i) kernels::add_sum_squares<float>(ExecSpace(), x, {{i, 1}}, second);
  EXPECT_EQ(kernels::take_sums(ExecSpace(), sums), (std::vector<double>{0.0, 25.0}));
  EXPECT_EQ(kernels::take_sums(ExecSpace(), sums), (std::vector<double>{0.0, 0.0}));
}

TEST(CountNotFinite, CountsNanAndBothInfinities) {
  auto x = random_values("x", 10000);
  EXPECT_EQ(kernels::count_not_finite<double>(ExecSpace(), vector_of<double>(x)), 0);
  x[0] = std::numeric_limits<double>::quiet_NaN();
  x[5000] = std::numeric_limits<double>::infinity();
  x[9999] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(kernels::count_not_finite<double>(ExecSpace(), vector_of<double>(x)), 3);
  EXPECT_EQ(kernels::count_not_finite<float>(ExecSpace(), vector_of<float>(x)), 3);
  EXPECT_EQ(kernels::count_not_finite<float>(ExecSpace(), View1<float const>()), 0);
  EXPECT_EQ(kernels::count_not_finite<float>(ExecSpace(), vector_of<float>({1.0, -2.0, 3.0, std::nan("")}), 2.0), 3);
}

template <class S>
void check_16_bits() {
  auto const x = rounded<S>(random_values("x", 100003));
  double const sum = dot(x, x);
  EXPECT_NEAR(sum_squares<S>(vector_of<S>(x)), sum, 1e-14 * sum);
  auto bad = x;
  bad[7] = bad[4096] = std::nan("");
  bad[100002] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(kernels::count_not_finite<S>(ExecSpace(), vector_of<S>(x)), 0);
  EXPECT_EQ(kernels::count_not_finite<S>(ExecSpace(), vector_of<S>(bad)), 3);
  auto const a = matrix_of<S>(3, 301, Vec(x.begin(), x.begin() + 903));
  auto const b = matrix_of<S>(3, 301, Vec(x.begin() + 903, x.begin() + 1806));
  kernels::sum_into_both<S>(ExecSpace(), a, b);
  expect_rounded<S>(host(a), plus(Vec(x.begin(), x.begin() + 903), Vec(x.begin() + 903, x.begin() + 1806)), "sum", 0.0);
  expect_same(host(a), host(b));
  Owned1<S> const filled("p3d::test::filled", 3000);
  kernels::fill<S>(ExecSpace(), filled, static_cast<S>(1.5));
  expect_same(host(filled), Vec(3000, 1.5));
}
TEST(Reductions, In16Bits) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
}

TEST(Fill, EveryElement) {
  for (std::int64_t n : {0, 1, 1024, 3000}) {
    Owned1<double> const x("p3d::test::x", n);
    kernels::fill<double>(ExecSpace(), x, 1.5);
    expect_same(host(x), Vec(n, 1.5));
  }
}

TEST(SumIntoBoth, BothGetTheSum) {
  constexpr std::int64_t rows = 3, cols = 301;
  auto const a = random_values("a", rows * cols), b = random_values("b", rows * cols);
  Vec sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  auto const x = matrix_of<double>(rows, cols, a), y = matrix_of<double>(rows, cols, b);
  kernels::sum_into_both<double>(ExecSpace(), x, y);
  expect_same(host(x), sum);
  expect_same(host(y), sum);
  EXPECT_THROW(kernels::sum_into_both<double>(ExecSpace(), x, matrix_of<double>(cols, rows, b)), p3d::base::Error);
}

TEST(FillNormal, EveryBlockOfAMatrixIsTheSameMatrix) {
  constexpr std::int64_t rows = 6, cols = 140, global_rows = 5;  // the last row is padding
  auto const key = p3d::base::random_key(1, "wte");
  Vec expected(rows * cols, 0.0);
  for (std::int64_t i = 0; i < global_rows * cols; ++i) expected[i] = 0.02 * p3d::base::random_normal(key, 0, i);
  Owned2<double> const all("p3d::test::all", rows, cols), block("p3d::test::block", 3, 70);
  kernels::fill_normal<double>(ExecSpace(), key, 0.02, 0, 0, cols, global_rows, all);
  expect_close(host(all), expected, 1e-15);
  kernels::fill_normal<double>(ExecSpace(), key, 0.02, 3, 70, cols, global_rows - 3, block);
  Vec part;
  auto const whole = host(all);
  for (std::int64_t r = 3; r < 6; ++r)
    part.insert(part.end(), whole.begin() + r * cols + 70, whole.begin() + (r + 1) * cols);
  expect_same(host(block), part);  // to the last bit, however the block is cut
}

}  // namespace reductions_test
