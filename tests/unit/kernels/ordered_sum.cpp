// SPDX-License-Identifier: Apache-2.0
// Reductions in the order of ranks, bit for bit beside a plain loop.

#include "support.hpp"

#include <p3d/kernels/ordered_sum.hpp>

#include <algorithm>
#include <vector>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace ordered_sum_test {

template <class S>
void expect_in_order(int ranks, std::int64_t n) {
  using A = kernels::Acc<S>;
  std::int64_t const stride = n + 3;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const own = host(vector_of<S>(random_values("own", n)));
    auto const others = host(vector_of<S>(random_values("others", stride * (ranks - 1))));
    for (auto const op : {kernels::Combine::sum, kernels::Combine::max, kernels::Combine::min}) {
      auto const inout = vector_of<S>(random_values("own", n));
      auto const rows = vector_of<S>(random_values("others", stride * (ranks - 1)));
      kernels::combine_in_order<S>(ExecSpace(), op, rank, View2<S const>(rows.data(), ranks - 1, stride), inout);
      auto const found = host(inout);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        std::vector<A> x;
        for (int r = 0, k = 0; r < ranks; ++r) {
          auto const at = static_cast<std::size_t>(k) * static_cast<std::size_t>(stride) + i;
          x.push_back(static_cast<A>(r == rank ? own[i] : others[at]));
          if (r != rank) ++k;
        }
        A value = x[0];
        for (std::size_t r = 1; r < x.size(); ++r) {
          value = op == kernels::Combine::sum   ? value + x[r]
                  : op == kernels::Combine::max ? std::max(value, x[r])
                                                : std::min(value, x[r]);
        }
        ASSERT_EQ(static_cast<A>(found[i]), static_cast<A>(static_cast<S>(value))) << "element " << i << ", " << ranks;
      }
    }
  }
}

TEST(CombineInOrder, HasTheBitsOfALoop) {
  for (int const ranks : {1, 2, 3, 7}) {
    for (std::int64_t const n : {0, 1, 1023, 2051}) {
      expect_in_order<double>(ranks, n);
      expect_in_order<float>(ranks, n);
#if P3D_16BIT
      expect_in_order<p3d::device::bfloat16>(ranks, n);
      expect_in_order<p3d::device::float16>(ranks, n);
#endif
    }
  }
}

}  // namespace ordered_sum_test
