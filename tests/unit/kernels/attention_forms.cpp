// SPDX-License-Identifier: Apache-2.0
// The portable form of attention on the backends where the other one is used, against the matrices written out.

#include "attention_case.hpp"

#include <p3d/base/error.hpp>

#include <kernels/attention_problem.hpp>
#include <kernels/launch.hpp>

namespace attention_test {

class PortableAttention : public ::testing::TestWithParam<Case> {};

template <class T>
void check_portable(Case const& c, double tolerance) {
  auto const qkv_values = rounded<T>(random_values("qkv", c.rows() * c.width())),
             dout_values = rounded<T>(random_values("dout", c.rows() * c.out_width()));
  auto const expected = plain(c, qkv_values);
  auto const qkv = matrix_of<T>(c.rows(), c.width(), qkv_values),
             dout = matrix_of<T>(c.rows(), c.out_width(), dout_values);
  Owned2<T> const out("p3d::test::out", c.rows(), c.out_width()), dqkv("p3d::test::dqkv", c.rows(), c.width());
  Owned1<Acc<T>> const lse("p3d::test::lse", c.rows() * c.heads), delta("p3d::test::delta", c.rows() * c.heads);
  Kokkos::deep_copy(out, static_cast<T>(std::nan("")));
  Kokkos::deep_copy(dqkv, static_cast<T>(std::nan("")));
  kernels::portable::attention_forward<T>(ExecSpace(), c.shape(), c.dropout(), qkv, out, lse);
  expect_close(host(out), expected.out, tolerance, "out");
  expect_close(host(lse), expected.lse, std::min(tolerance, 4e-6), "lse");
  kernels::portable::attention_backward<T>(ExecSpace(), c.shape(), c.dropout(), qkv, out, lse, dout, dqkv, delta);
  expect_close(host(dqkv), plain_gradient(c, qkv_values, dout_values), 3 * tolerance, "dqkv");
}

TEST_P(PortableAttention, MatchesTheMatricesWrittenOut) {
  check_portable<double>(GetParam(), 1e-13);
  check_portable<float>(GetParam(), 4e-6);
  check_portable<bfloat16>(GetParam(), roundoff<bfloat16>);
  check_portable<float16>(GetParam(), roundoff<float16>);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PortableAttention,
                         ::testing::Values(Case{2, 5, 2, 2, 6, 0.0}, Case{1, 1, 1, 1, 4, 0.0},
                                           Case{2, 65, 2, 1, 8, 0.0}, Case{1, 150, 4, 2, 64, 0.0},
                                           Case{1, 130, 3, 1, 37, 0.0}, Case{2, 7, 2, 2, 6, 0.3},
                                           Case{1, 131, 4, 2, 20, 0.2}),
                         [](auto const& info) { return info.param.name(); });

TEST(Teams, MoreThanKokkosCountsAreRefused) {
  EXPECT_EQ(kernels::team_count(2147483647), 2147483647);
  EXPECT_THROW((void)kernels::team_count(std::int64_t{1} << 31), p3d::base::Error);
  EXPECT_THROW((void)kernels::team_count((std::int64_t{1} << 32) + 5), p3d::base::Error);
}

}  // namespace attention_test
