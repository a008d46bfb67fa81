// SPDX-License-Identifier: Apache-2.0
// Sums down the columns in the form for devices: the bits of a plain loop over fixed blocks of rows, whatever the
// number of threads.

#include "support.hpp"

#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>

#include <kernels/column_sum.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace column_sum_test {

TEST(ColumnSum, BlocksDependOnSizesAloneAndFit) {
  EXPECT_EQ(kernels::rows_of_block(10, 4), 32);
  EXPECT_EQ(kernels::rows_of_block(8192, 64), 32);
  EXPECT_EQ(kernels::rows_of_block(8193, 64), 33);
  for (std::int64_t width : {1, 1000, 5000, 300000, 1 << 20, 3 << 20})
    for (std::int64_t rows : {1, 33, 4096, 1000003}) {
      std::int64_t const size = kernels::rows_of_block(rows, width), blocks = (rows + size - 1) / size;
      EXPECT_TRUE(blocks == 1 || blocks * width <= kernels::column_workspace_size) << rows << " x " << width;
    }
}

TEST(ColumnSum, AddsBlocksInOrder) {
  // Terms of very different size: another order, or other blocks, would give other bits.
  // The 11 blocks of 32 rows are added in 8 groups of at most 2, and then the groups.
  constexpr std::int64_t rows = 333, cols = 37, size = 32, group = 2 * size;
  auto v = random_values("v", rows * cols);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= std::ldexp(1.0, static_cast<int>(i * 7 % 41));
  Vec expected = random_values("b", cols);
  auto const sums = vector_of<double>(expected);
  double differs = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    double sum = 0, plain = 0;
    for (std::int64_t first = 0; first < rows; first += group) {
      double both = 0;
      for (std::int64_t begin = first; begin < std::min(rows, first + group); begin += size) {
        double part = 0;
        for (std::int64_t r = begin; r < std::min(rows, begin + size); ++r) part += v[r * cols + c];
        both += part;
      }
      sum += both;
    }
    for (std::int64_t r = 0; r < rows; ++r) plain += v[r * cols + c];
    differs += plain != sum;
    expected[c] += sum;
  }
  EXPECT_GT(differs, 0) << "the data do not tell orders apart";
  kernels::bias_backward<double>(ExecSpace(), matrix_of<double>(rows, cols, v), sums);
  expect_same(host(sums), expected);
}

TEST(ColumnSum, RowsOfOneKeyAreAddedInTheirOrder) {
  constexpr std::int64_t rows = 500, cols = 19, vocabulary = 11, begin = 3;
  std::vector<int> tokens;
  for (std::int64_t r = 0; r < rows; ++r) tokens.push_back(static_cast<int>(r * r % 17));  // some are others' tokens
  auto v = random_values("v", rows * cols);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= std::ldexp(1.0, static_cast<int>(i * 7 % 41));
  Vec expected = random_values("w", vocabulary * cols);
  auto const weight = matrix_of<double>(vocabulary, cols, expected);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      if (std::int64_t const token = tokens[r] - begin; token >= 0 && token < vocabulary)
        expected[token * cols + c] += v[r * cols + c];
  kernels::embedding_backward<double>(ExecSpace(), ints_of(tokens), matrix_of<double>(rows, cols, v), begin, weight);
  expect_same(host(weight), expected);
}

}  // namespace column_sum_test
