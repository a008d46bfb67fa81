// SPDX-License-Identifier: Apache-2.0
// One-forward-one-backward (PipeDream-Flush; arXiv 2104.04473, figure 4, top).

#include "common.hpp"

#include <p3d/schedule/schedule.hpp>

#include <algorithm>

namespace p3d::schedule {

Program one_f_one_b(int num_ranks, int num_microbatches) {
  Program program = empty_program({num_ranks, num_microbatches});
  for (int stage = 0; stage < num_ranks; ++stage) {
    auto& actions = program.ranks[static_cast<std::size_t>(stage)];
    actions.reserve(2 * static_cast<std::size_t>(num_microbatches));
    int const warmup = std::min(num_ranks - 1 - stage, num_microbatches);
    for (int m = 0; m < warmup; ++m) actions.push_back({Op::forward, stage, m});
    for (int m = 0; m < num_microbatches; ++m) {
      if (warmup + m < num_microbatches) actions.push_back({Op::forward, stage, warmup + m});
      actions.push_back({Op::backward, stage, m});
    }
  }
  return program;
}

extern Generator const generator_1f1b;
Generator const generator_1f1b{
    .name = "1f1b",
    .alias = "pipedream",
    .help =
        "one forward, one backward in turn; bubble (p-1)/m of the ideal time, keeps min(p-s, m) microbatches on stage "
        "s; as pipedream gradients are late by stage, and no step waits for another",
    .make = [](Shape const& shape) { return one_f_one_b(shape.num_ranks, shape.num_microbatches); }};

}  // namespace p3d::schedule
