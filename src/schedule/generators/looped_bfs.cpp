// SPDX-License-Identifier: Apache-2.0
// Looped breadth-first (arXiv 2211.05953, figure 4): GPipe with v stages per rank, every chunk for all microbatches
// before the next one. Bubble (p-1)/(v m) for m >= p, keeps everything, and a chunk's gradients are complete early, one
// chunk after the other, so that their reduction over dp hides behind the rest.

#include "common.hpp"

namespace p3d::schedule {

extern Generator const generator_looped_bfs;
Generator const generator_looped_bfs{
    .name = "looped_bfs",
    .help = "gpipe with v stages per rank, one after the other; bubble (p-1)/(v m), keeps all; reductions start early",
    .stages_per_rank = 2,
    .any_stages_per_rank = true,
    .make = [](Shape const& shape) {
      Program program = empty_program(shape);
      for (int rank = 0; rank < shape.num_ranks; ++rank) {
        auto& list = program.ranks[static_cast<std::size_t>(rank)];
        auto const all_of = [&](Op op, int chunk) {
          for (int m = 0; m < shape.num_microbatches; ++m)
            list.push_back({op, stage_of(Placement::loop, shape.num_ranks, rank, chunk), m});
        };
        for (int c = 0; c < shape.stages_per_rank; ++c) all_of(Op::forward, c);
        for (int c = shape.stages_per_rank - 1; c >= 0; --c) all_of(Op::backward, c);
      }
      return program;
    }};

}  // namespace p3d::schedule
