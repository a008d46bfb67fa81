// SPDX-License-Identifier: Apache-2.0
// Bias: forward fills every row, backward sums the columns on top of what is there; empty means nothing.

#include "support.hpp"

#include <p3d/kernels/elementwise.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace bias_test {

template <class T>
void check(std::int64_t rows, std::int64_t cols) {
  auto const y = random_values("y", rows * cols), b = random_values("b", cols);
  Vec forward = y, backward = b;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      forward[r * cols + c] = b[c];
      backward[c] += y[r * cols + c];
    }
  auto const dy = matrix_of<T>(rows, cols, y);
  auto const db = vector_of<T>(b);
  kernels::bias_backward<T>(ExecSpace(), dy, db);
  expect_close(host(db), backward, 16 * std::numeric_limits<T>::epsilon());  // in other orders
  kernels::bias_backward<T>(ExecSpace(), dy, View1<T>());
  kernels::fill_with_bias<T>(ExecSpace(), dy, vector_of<T>(b));
  expect_close(host(dy), forward, std::numeric_limits<T>::epsilon());
}

TEST(Bias, MatchesPlainLoops) {
  for (auto [rows, cols] : {std::pair{1, 1}, {7, 5}, {300, 131}, {0, 4}}) {
    check<double>(rows, cols);
    check<float>(rows, cols);
  }
}

template <class S>
void check_16_bits(std::int64_t rows, std::int64_t cols) {
  auto const y = rounded<S>(random_values("y", rows * cols)), b = rounded<S>(random_values("b", cols));
  Vec forward, sums = b;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    forward.push_back(b[i % cols]);
    sums[i % cols] += y[i];
  }
  auto const dy = matrix_of<S>(rows, cols, y);
  auto const db = vector_of<float>(b);
  kernels::bias_backward<S>(ExecSpace(), dy, db);
  expect_close(host(db), sums, 4 * std::numeric_limits<float>::epsilon());
  kernels::fill_with_bias<S>(ExecSpace(), dy, vector_of<S>(b));
  expect_same(host(dy), forward);
}
TEST(Bias, In16BitsSumsInFloat) {
  for (auto [rows, cols] : {std::pair{7, 5}, {300, 131}}) {
    check_16_bits<bfloat16>(rows, cols);
    check_16_bits<float16>(rows, cols);
  }
}

TEST(Bias, LongColumnsKeepSinglePrecision) {
  // A plain float sum of 2^20 + ... loses all the small terms: 2^24 + 1 = 2^24 in float.
  constexpr std::int64_t rows = 4097;
  Vec dy(rows, 1.0);
  dy[0] = 16777216.0;
  auto const db = vector_of<float>({0.0});
  kernels::bias_backward<float>(ExecSpace(), matrix_of<float>(rows, 1, dy), db);
  EXPECT_EQ(host(db)[0], 16777216.0 + 4096.0);
}

}  // namespace bias_test
