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
  auto const found = forward<T>(c, qkv_values, true);
  expect_close(found.out, expected.out, tolerance, "out");
  expect_close(found.lse, expected.lse, std::min(tolerance, 4e-6), "lse");
  expect_close(backward<T>(c, qkv_values, dout_values, found, true), plain_gradient(c, qkv_values, dout_values),
               3 * tolerance, "dqkv");
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
