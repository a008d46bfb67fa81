// SPDX-License-Identifier: Apache-2.0
// GPipe (arXiv 1811.06965, figure 2c).

#include "common.hpp"

#include <p3d/schedule/schedule.hpp>

namespace p3d::schedule {

Program gpipe(int num_ranks, int num_microbatches) {
  Program program = empty_program({num_ranks, num_microbatches});
  for (int stage = 0; stage < num_ranks; ++stage) {
    auto& actions = program.ranks[static_cast<std::size_t>(stage)];
    actions.reserve(2 * static_cast<std::size_t>(num_microbatches));
    for (int m = 0; m < num_microbatches; ++m) actions.push_back({Op::forward, stage, m});
    for (int m = 0; m < num_microbatches; ++m) actions.push_back({Op::backward, stage, m});
  }
  return program;
}

extern Generator const generator_gpipe;
Generator const generator_gpipe{
    .name = "gpipe",
    .help = "all forwards, then all backwards; bubble (p-1)/m of the ideal time, keeps m microbatches on every stage",
    .make = [](Shape const& shape) { return gpipe(shape.num_ranks, shape.num_microbatches); }};

}  // namespace p3d::schedule
