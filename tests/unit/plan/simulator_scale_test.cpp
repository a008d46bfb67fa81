// SPDX-License-Identifier: Apache-2.0
// The simulator is linear: a machine's worth of stages in seconds. The limit is ctest's time-out; time and memory are
// printed, not tested.

#include <p3d/base/timer.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/registry.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <string>

TEST(Scale, stages_512_microbatches_1024_chunks_4) {
  p3d::base::Stopwatch watch;
  auto const program = p3d::schedule::complete(p3d::schedule::generate("interleaved_1f1b", {512, 1024, 4}));
  double const made = watch.seconds();
  auto const result = p3d::plan::simulate(program, p3d::plan::PipelineCosts::uniform(program.num_stages));
  double const simulated = watch.seconds() - made;
  EXPECT_EQ(result.makespan, 3.0 * (1024 * 4 + 511));
  std::size_t actions = 0;
  for (auto const& list : program.ranks) actions += list.size();
  std::string memory, line;
  for (std::ifstream status("/proc/self/status"); std::getline(status, line);)
    if (line.starts_with("VmHWM")) memory = line;
  std::cout << actions << " actions, made in " << made << " s, simulated in " << simulated << " s, " << memory << '\n';
}
