// SPDX-License-Identifier: Apache-2.0
// Eager 1F1B (arXiv 2211.05322): 1F1B with about twice the warm-up, so that every stage has a spare microbatch while a
// message goes to the next stage and its gradient comes back. Without communication cost it takes as long as 1F1B.

#include "common.hpp"

#include <algorithm>

namespace p3d::schedule {

extern Generator const generator_eager_1f1b;
Generator const generator_eager_1f1b{.name = "eager_1f1b",
                                     .help =
                                         "1f1b for slow networks: hides messages behind up to twice the warm-up; keeps "
                                         "min(2(p-s)-1, m) microbatches on stage s",
                                     .make = [](Shape const& shape) {
                                       Program program = empty_program(shape);
                                       int const m = shape.num_microbatches;
                                       for (int stage = 0; stage < shape.num_ranks; ++stage) {
                                         auto& list = program.ranks[static_cast<std::size_t>(stage)];
                                         int const warmup = std::min(2 * (shape.num_ranks - 1 - stage), m);
                                         for (int i = 0; i < warmup; ++i) list.push_back({Op::forward, stage, i});
                                         for (int i = 0; i < m; ++i) {
                                           if (warmup + i < m) list.push_back({Op::forward, stage, warmup + i});
                                           list.push_back({Op::backward, stage, i});
                                         }
                                       }
                                       return program;
                                     }};

}  // namespace p3d::schedule
