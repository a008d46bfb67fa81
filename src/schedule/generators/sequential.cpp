// SPDX-License-Identifier: Apache-2.0
// One microbatch at a time through all stages: the plainest schedule, to compare with. Only one rank works at any time,
// so a step takes m p (f + b), and each stage keeps one microbatch.

#include "common.hpp"

namespace p3d::schedule {

extern Generator const generator_sequential;
Generator const generator_sequential{
    .name = "sequential",
    .alias = "round_robin",
    .help = "one microbatch through all stages at a time; bubble p-1 times the ideal time, keeps one microbatch",
    .make = [](Shape const& shape) {
      Program program = empty_program(shape);
      for (int stage = 0; stage < shape.num_ranks; ++stage)
        for (int m = 0; m < shape.num_microbatches; ++m)
          for (Op op : {Op::forward, Op::backward})
            program.ranks[static_cast<std::size_t>(stage)].push_back({op, stage, m});
      return program;
    }};

}  // namespace p3d::schedule
