// SPDX-License-Identifier: Apache-2.0
// The validator and the passes are linear: a machine's worth of stages in seconds. The limit is ctest's time-out; the
// time is printed, not tested.

#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

using namespace p3d::schedule;

TEST(Scale, one_f_one_b_of_512_stages_and_4096_microbatches) {
  auto const start = std::chrono::steady_clock::now();
  auto const seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Program program = complete(one_f_one_b(512, 4096));
  double const made = seconds();
  EXPECT_TRUE(validate(program).empty());
  double const validated = seconds() - made;
  std::size_t actions = 0;
  for (auto const& list : program.ranks) actions += list.size();
  std::cout << actions << " actions, made in " << made << " s, validated in " << validated << " s\n";

  // And an error in its midst is found.
  auto& list = program.ranks[300];
  std::swap(list[list.size() / 2], list[list.size() / 2 + 40]);
  EXPECT_FALSE(validate(program).empty());
}
