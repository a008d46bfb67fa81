// SPDX-License-Identifier: Apache-2.0
// What devices have in place of vector loops: reads and writes of 128 bits with a tail, and divisions by
// multiplication.

#include "support.hpp"

#include <kernels/wide.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace kernels = p3d::kernels;

namespace {

TEST(Divisor, IsExactBelowItsLimit) {
  constexpr std::int64_t limit = kernels::Divisor::limit;
  std::vector<std::int64_t> divisors{limit - 1, limit / 2 - 1, limit / 2, limit / 2 + 1};
  for (std::int64_t d = 1; d <= 4096; ++d) divisors.push_back(d);
  for (std::int64_t power = 1; power < limit; power *= 2)
    for (std::int64_t d : {power - 1, power, power + 1})
      if (d > 0 && d < limit) divisors.push_back(d);
  for (std::int64_t const d : divisors) {
    kernels::Divisor const by(d);
    // Where a quotient changes, at both ends of the range and between.
    for (std::int64_t const q : {std::int64_t{0}, std::int64_t{1}, limit / d / 3, limit / d / 2, limit / d})
      for (std::int64_t const x : {q * d - 1, q * d, q * d + 1, q * d + d - 1, limit - 1})
        if (x >= 0 && x < limit) ASSERT_EQ(by.of(static_cast<std::uint32_t>(x)), x / d) << x << " / " << d;
  }
}

template <class T>
class Wide : public testing::Test {};
using Types = testing::Types<float, double, p3d::device::bfloat16, p3d::device::float16>;
TYPED_TEST_SUITE(Wide, Types);

/// From every alignment, of every length: what is there, zeros beyond, and nothing written beyond.
TYPED_TEST(Wide, ReadsAndWritesWhatIsThere) {
  using T = TypeParam;
  constexpr int W = kernels::wide<T>;
  static_assert(W * sizeof(T) == 16);
  alignas(16) T from[3 * W], to[3 * W];
  for (int offset = 0; offset <= W; ++offset) {
    for (int n = 0; n <= W; ++n) {
      for (int i = 0; i < 3 * W; ++i) from[i] = T(i + 1), to[i] = T(100);
      auto const in = kernels::read<W>(from + offset, n);
      auto out = kernels::write<W>(to + offset, n);
      for (int i = 0; i < W; ++i) {
        EXPECT_EQ(static_cast<double>(in[i]), i < n ? offset + i + 1 : 0);
        kernels::put(out[i], in[i]);
      }
      out.store();
      for (int i = 0; i < 3 * W; ++i)
        EXPECT_EQ(static_cast<double>(to[i]), i >= offset && i < offset + n ? i + 1 : 100) << offset << ' ' << n;
    }
  }
}

/// Every element of a matrix once, whatever the number of columns.
TEST(Chunks, CoverEveryElementOnce) {
  using kernels::ExecSpace;
  for (std::int64_t const cols : {1, 3, 4, 5, 8, 127, 1000}) {
    std::int64_t const rows = 37;
    p3d::device::Owned1<float> const owned("p3d::test::counts", static_cast<std::size_t>(rows * cols));
    kernels::View2<float> const m(owned.data(), rows, cols);
    kernels::for_chunks<4>(
        "p3d::kernels::test_chunks", ExecSpace(), rows, cols, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
          for (int i = 0; i < n; ++i) m(r, c + i) += static_cast<float>(1 + r * cols + c + i);
        });
    auto const host = p3d::device::host_copy(owned);
    for (std::size_t i = 0; i < host.size(); ++i) ASSERT_EQ(host(i), static_cast<float>(1 + i)) << cols;
  }
}

}  // namespace
