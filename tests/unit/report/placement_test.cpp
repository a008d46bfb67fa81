// SPDX-License-Identifier: Apache-2.0
// Placement: the report and the errors that it must, and must not, find. Made-up hosts, no MPI.
#include <p3d/report/placement.hpp>

#include <gtest/gtest.h>

#include <numeric>

using namespace p3d::report;

namespace {

std::vector<int> span(int begin, int end) {
  std::vector<int> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

RankPlacement at(std::vector<int> cores, int threads = 1, std::string host = "a") {
  return {.host = std::move(host),
          .cores = std::move(cores),
          .host_cores = 0,
          .threads = threads,
          .blas_threads = threads,
          .gpu = -1,
          .gpu_name = "",
          .gpu_bus = ""};
}

RankPlacement with_gpu(RankPlacement p, int gpu, std::string bus) {
  p.gpu = gpu;
  p.gpu_bus = std::move(bus);
  return p;
}

bool says(std::vector<std::string> const& warnings, std::string const& words) {
  for (auto const& w : warnings) {
    if (w.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(Placement, NeighboursThatAreAlikeShareALine) {
  std::vector<RankPlacement> const places{at(span(0, 4)), at(span(0, 4)), at(span(4, 8), 4), at(span(0, 4), 1, "b")};
  EXPECT_EQ(describe(places, 9),
            "  ranks 0-1 on a: cores 0-3, 1 thread\n  rank 2 on a: cores 4-7, 4 threads\n  rank 3 on b: cores 0-3, 1 "
            "thread\n");
  EXPECT_EQ(describe(places, 1), "  ranks 0-1 on a: cores 0-3, 1 thread\n  ... and ranks 2-3\n");
}

TEST(Placement, WhatFitsGetsNoWarning) {
  EXPECT_TRUE(placement_warnings({at(span(0, 4)), at(span(0, 4)), at(span(0, 4)), at(span(0, 4))}).empty())
      << "unbound, as many ranks as cores";
  EXPECT_TRUE(placement_warnings({at(span(0, 4), 4), at(span(4, 8), 4)}).empty()) << "bound, a thread for each core";
  EXPECT_TRUE(placement_warnings({at({0, 1}), at({1, 2})}).empty()) << "they overlap, but both find a core";
  EXPECT_TRUE(placement_warnings({at({0}), at({0}, 1, "b")}).empty()) << "core 0 of two hosts";
  EXPECT_TRUE(placement_warnings({at({})}).empty()) << "unknown";
}

TEST(Placement, MoreRanksThanCoresIsNoErrorWhereAllAreFree) {
  std::vector<RankPlacement> const places(8, at(span(0, 4)));
  EXPECT_TRUE(placement_warnings(places).empty());
  EXPECT_EQ(placement_note(places),
            "  8 ranks share 4 cores: good for trying out; as many ranks as cores are faster\n");
  EXPECT_EQ(placement_note(std::vector<RankPlacement>(4, at(span(0, 4)))), "");
}

TEST(Placement, AllRanksOnOneCoreOfMany) {
  std::vector<RankPlacement> places(4, at({0}));
  for (auto& p : places) p.host_cores = 4;
  EXPECT_EQ(placement_note(places), "");
  auto const warnings = placement_warnings(places);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "4 thread(s) of ranks 0-3 share 1 core (0)")) << warnings[0];
}

TEST(Placement, ThreadsTimesRanksBeyondTheCores) {
  auto const warnings = placement_warnings({at(span(0, 4), 4), at(span(0, 4), 4)});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "OMP_NUM_THREADS=2")) << warnings[0];
}

TEST(Placement, TwoRanksOnOneCoreWhileOthersAreFree) {
  std::vector<RankPlacement> places{at({0}), at({0}), at({1}), at({2})};
  for (auto& p : places) p.host_cores = 4;
  auto const warnings = placement_warnings(places);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "ranks 0-1 share 1 core (0)")) << warnings[0];
  EXPECT_TRUE(says(warnings, "--cpus-per-task=1")) << warnings[0];
}

TEST(Placement, BoundButTooManyForTheHost) {
  auto const warnings = placement_warnings({at({0}), at({1}), at({0})});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "3 thread(s) of ranks 0-2 share 2 cores (0-1)")) << warnings[0];
  EXPECT_TRUE(says(warnings, "at most 2 rank(s)")) << warnings[0];
}

TEST(Placement, OneRankWithMoreThreadsThanItsBindingAllows) {
  std::vector<RankPlacement> places{at({0}, 4), at({1}, 4)};
  for (auto& p : places) p.host_cores = 8;
  auto const warnings = placement_warnings(places);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "4 thread(s) of rank 0 share 1 core (0)")) << warnings[0];
  EXPECT_TRUE(says(warnings, "--cpus-per-task=4")) << warnings[0];
}

TEST(Placement, BindingsThatOverlapInPart) {
  auto const warnings = placement_warnings({at(span(0, 4), 4), at(span(2, 6), 4), at(span(6, 10), 2)});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "8 thread(s) of ranks 0-1 share 6 cores (0-5)")) << warnings[0];
}

TEST(Placement, BlasThreadsBeyondTheRanksThreads) {
  auto p = at(span(0, 8));
  p.blas_threads = 8;
  auto const warnings = placement_warnings({at(span(0, 8)), p});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "8 BLAS threads on rank 1")) << warnings[0];
  EXPECT_TRUE(says(warnings, "OPENBLAS_NUM_THREADS=1")) << warnings[0];
}

TEST(Placement, RanksThatShareAGpu) {
  auto const cores = span(0, 8);
  EXPECT_TRUE(placement_warnings({with_gpu(at(cores), 0, "0000:01:00"), with_gpu(at(cores), 0, "0000:02:00")}).empty())
      << "each rank sees its own as number 0";
  auto const warnings = placement_warnings({with_gpu(at(cores), 0, "0000:01:00"), with_gpu(at(cores), 1, "0000:02:00"),
                                            with_gpu(at(cores), 0, "0000:01:00")});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "ranks 0,2 share GPU 0000:01:00")) << warnings[0];
  EXPECT_TRUE(says(warnings, "--ntasks-per-node=2")) << warnings[0];
  EXPECT_TRUE(says(placement_warnings({with_gpu(at(cores), 1, ""), with_gpu(at(cores), 1, "")}), "GPU number 1"));
}

TEST(Placement, OneErrorOnManyHostsIsOneWarning) {
  std::vector<RankPlacement> places;
  for (char const* host : {"a", "b", "c"}) {
    places.push_back(at({0}, 1, host));
    places.push_back(at({0}, 1, host));
  }
  for (auto& p : places) p.host_cores = 4;
  auto const warnings = placement_warnings(places);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(says(warnings, "the like on 2 more host(s)")) << warnings[0];
}

}  // namespace
