// SPDX-License-Identifier: Apache-2.0
// Rows that travel to the ranks of their experts and back, in one pass and in several.

#include <p3d/parallel/experts.hpp>

#include <p3d/base/random.hpp>
#include <p3d/device/memory.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace {
using namespace p3d;
using device::ExecSpace;
using device::View2;
using parallel::ExpertParallel;

constexpr std::int64_t width = 3;

/// What a row is made of: its sender, its number, its expert.
double value(int rank, std::int64_t row, std::int64_t expert, std::int64_t column) {
  return 1.0 + 1000.0 * rank + static_cast<double>(row) + 0.01 * static_cast<double>(expert) +
         0.0001 * static_cast<double>(column);
}

void check(comm::Communicator& world, int ep, int experts, int kind, std::int64_t room) {
  SCOPED_TRACE(fmt::format("ep {}, {} experts, routing {}, room {}", ep, experts, kind, room));
  int const size = world.size(), etp = size / ep;
  layout::ExpertGroup group{.experts = experts, .ep = ep, .etp = etp, .ep_of = {}};
  for (int r = 0; r < size; ++r) group.ep_of.push_back(r / etp);
  ExpertParallel experts_of(&world, group);
  std::vector<std::int64_t> counts;
  for (int e = 0; e < experts; ++e) {
    auto const n = base::random_block(base::random_key(7, "counts"), static_cast<std::uint64_t>(world.rank()),
                                      static_cast<std::uint64_t>(e))
                       .w[0] %
                   9;
    counts.push_back(kind == 0 ? n : kind == 1 ? (e == experts - 1 ? 17 : 0) : (e % 2 == 0 ? n : 0));
  }
  world.reset_accounting();
  auto const dispatch = experts_of.plan(counts, room);
  std::int64_t rows = 0;
  for (auto n : counts) rows += n;
  device::Owned2<double> const own("own", rows, width), back("back", etp * rows, width),
      received("received", room, width);
  std::vector<std::int64_t> expert;
  auto const host = Kokkos::create_mirror_view(own);
  for (int e = 0; e < experts; ++e)
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(e)]; ++i) {
      auto const row = std::ssize(expert);
      for (std::int64_t c = 0; c < width; ++c) host(row, c) = value(world.rank(), row, e, c);
      expert.push_back(e);
    }
  Kokkos::deep_copy(own, host);
  Kokkos::deep_copy(back, -1.0);
  std::int64_t seen = 0;
  for (int pass = 0; pass < dispatch.passes(); ++pass) {
    auto requests =
        experts_of.start_to_experts<double>(ExecSpace(), dispatch, pass, View2<double const>(own.data(), rows, width),
                                            View2<double>(received.data(), room, width));
    comm::wait_all(requests);
    ASSERT_LE(dispatch.rows(pass), room);
    seen += dispatch.rows(pass);
    auto const got = Kokkos::create_mirror_view(received);
    Kokkos::deep_copy(got, received);
    auto const order = dispatch.received_order(pass);
    auto const offsets = dispatch.offsets(pass);
    for (int e = 0; e < group.local_experts(); ++e)
      for (auto i = offsets[static_cast<std::size_t>(e)]; i < offsets[static_cast<std::size_t>(e) + 1]; ++i) {
        auto const r = order[static_cast<std::size_t>(i)];
        auto const number = static_cast<std::int64_t>((got(r, 0) - static_cast<std::int64_t>(got(r, 0))) * 100 + 0.5);
        EXPECT_EQ(number, group.experts_of(world.rank()).begin + e);
        for (std::int64_t c = 0; c < width; ++c) got(r, c) *= 2 + world.rank() % etp;
      }
    Kokkos::deep_copy(received, got);
    requests = experts_of.start_to_tokens<double>(ExecSpace(), dispatch, pass,
                                                  View2<double const>(received.data(), room, width), rows,
                                                  View2<double>(back.data(), etp * rows, width));
    comm::wait_all(requests);
  }
  EXPECT_EQ(seen, dispatch.all_rows());
  auto const result = Kokkos::create_mirror_view(back);
  Kokkos::deep_copy(result, back);
  std::int64_t others = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    auto const e = expert[static_cast<std::size_t>(row)];
    for (int t = 0; t < etp; ++t) {
      others += e / group.local_experts() * etp + t == world.rank() ? 0 : 1;
      for (std::int64_t c = 0; c < width; ++c)
        EXPECT_EQ(result(t * rows + row, c), (2 + t) * value(world.rank(), row, e, c))
            << "row " << row << ", etp " << t;
    }
  }
  // Counted: what this rank sends to experts, and what comes back of the rows of others.
  auto const to_experts = others, mine = dispatch.all_rows();
  std::int64_t self = 0;
  for (int pass = 0; pass < dispatch.passes(); ++pass) self += dispatch.sent_to(pass, world.rank()).size();
  EXPECT_EQ(experts_of.sent_bytes(), static_cast<std::int64_t>(sizeof(double)) * width * (to_experts + mine - self));
}

TEST(Experts, RowsComeBackFromEveryRankOfTheirExpert) {
  auto world = comm::Communicator::world();
  for (int ep = 1; ep <= world.size(); ++ep) {
    if (world.size() % ep != 0) continue;
    for (int each : {1, 2, 3})
      for (int kind : {0, 1, 2})
        for (std::int64_t room : {std::int64_t{world.size()}, std::int64_t{13}, std::int64_t{400}})
          check(world, ep, ep * each, kind, std::max<std::int64_t>(room, world.size()));
  }
}

// Ranks with unequal numbers of tokens, in blocks of 6.
TEST(Experts, TokensGoToAllRanksAndTheirSumsComeBack) {
  auto world = comm::Communicator::world();
  int const size = world.size(), rank = world.rank();
  layout::ExpertGroup group{.experts = size, .ep = size, .etp = 1, .ep_of = {}};
  for (int r = 0; r < size; ++r) group.ep_of.push_back(r);
  ExpertParallel experts(&world, group);
  constexpr std::int64_t each = 6;
  auto const tokens = [](int r) { return std::int64_t{1 + (3 * r) % 6}; };
  auto const choices = experts.share_choices(std::vector<int>(static_cast<std::size_t>(tokens(rank)), 10 + rank), each);
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(choices.count[static_cast<std::size_t>(r)], tokens(r));
    for (std::int64_t i = 0; i < each; ++i)
      EXPECT_EQ(choices.values[static_cast<std::size_t>(r * each + i)], i < tokens(r) ? 10 + r : -1);
  }
  device::Owned2<double> const own("own", tokens(rank), width), all("all", size * each, width),
      back("back", size * each, width);
  auto const host = Kokkos::create_mirror_view(own);
  for (std::int64_t i = 0; i < tokens(rank); ++i)
    for (std::int64_t c = 0; c < width; ++c) host(i, c) = value(rank, i, 0, c);
  Kokkos::deep_copy(own, host);
  Kokkos::deep_copy(all, -1.0);
  Kokkos::deep_copy(back, -1.0);
  world.reset_accounting();
  auto requests = experts.start_share<double>(ExecSpace(), choices.count,
                                              View2<double const>(own.data(), own.extent(0), width), all);
  comm::wait_all(requests);
  std::int64_t others = 0;
  auto const got = Kokkos::create_mirror_view(all);
  Kokkos::deep_copy(got, all);
  for (int r = 0; r < size; ++r) {
    others += r == rank ? 0 : tokens(r);
    for (std::int64_t i = 0; i < each; ++i)
      for (std::int64_t c = 0; c < width; ++c) {
        auto& x = got(r * each + i, c);
        EXPECT_EQ(x, i < tokens(r) ? value(r, i, 0, c) : -1.0);
        x *= 2 + rank;
      }
  }
  auto const row = static_cast<std::int64_t>(sizeof(double)) * width;
  EXPECT_EQ(experts.sent_bytes(), row * (size - 1) * tokens(rank));
  Kokkos::deep_copy(all, got);
  requests = experts.start_collect<double>(ExecSpace(), choices.count,
                                           View2<double const>(all.data(), all.extent(0), width), back);
  comm::wait_all(requests);
  EXPECT_EQ(experts.sent_bytes(), row * ((size - 1) * tokens(rank) + others));
  auto const result = Kokkos::create_mirror_view(back);
  Kokkos::deep_copy(result, back);
  for (int r = 0; r < size; ++r)
    for (std::int64_t i = 0; i < tokens(rank); ++i)
      for (std::int64_t c = 0; c < width; ++c) EXPECT_EQ(result(r * each + i, c), (2 + r) * value(rank, i, 0, c));
}

}  // namespace
