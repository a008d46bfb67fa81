// SPDX-License-Identifier: Apache-2.0
// The portable form of the kernels: the teams that they are started with, and that they are that form.

#include "support.hpp"

#include <kernels/launch.hpp>

#include <cstdlib>

namespace kernels = p3d::kernels;

namespace teams_test {

/// P3D_TEST_TEAM, for the whole program.
int asked_for() {
  char const* const text = std::getenv("P3D_TEST_TEAM");
  return text == nullptr ? 1 : std::atoi(text);
}
int const team = kernels::team_threads = asked_for();

static_assert(!kernels::on_host, "this program tests the form for devices");

TEST(Teams, HaveTheThreadsAskedForAndEachHasItsShare) {
  constexpr std::int64_t rows = 7, n = 12;
  p3d::test::Owned2<int> const threads("p3d::test::threads", rows, n);
  p3d::test::Owned1<int> const sizes("p3d::test::sizes", rows), turns("p3d::test::turns", rows);
  kernels::for_rows(
      "p3d::test::teams", p3d::test::ExecSpace(), rows, KOKKOS_LAMBDA(kernels::RowTeam const& member, std::int64_t r) {
        kernels::each(member, n, [=](std::int64_t i) { threads(r, i) = member.team_rank(); });
        kernels::once(member, [=] {
          sizes(r) = member.team_size();
          ++turns(r);
        });
      });
  EXPECT_EQ(p3d::test::host(sizes), p3d::test::Vec(rows, team));
  EXPECT_EQ(p3d::test::host(turns), p3d::test::Vec(rows, 1));
  auto const who = p3d::test::host(threads);
  for (int t = 0; t < team; ++t) EXPECT_EQ(std::count(who.begin(), who.end(), t), rows * n / team) << "thread " << t;
}

}  // namespace teams_test
