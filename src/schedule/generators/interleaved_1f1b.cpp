// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B (arXiv 2104.04473, section 2.2 and figure 4, bottom): v stages (chunks) per rank make the bubble v
// times smaller and the messages v times more.
//
// Microbatches go in groups through all chunks. The paper needs the number of microbatches to be a multiple of p. Here
// the groups are as even as possible and none is smaller than `microbatch_group_size` (unless there are too few
// microbatches for one): with groups of at least p no rank runs dry between chunks, so that any m >= p takes the ideal
// (m + (p-1)/v)(f + b); m < p takes (v-1)(p-m)(f+b)/v more.

#include "common.hpp"

#include <algorithm>

namespace p3d::schedule {
namespace {

struct ChunkTurn {
  int chunk, microbatch;
};

Program interleaved(Shape const& shape) {
  int const p = shape.num_ranks, v = shape.stages_per_rank, m = shape.num_microbatches;
  Program program = empty_program(shape);
  int const groups = std::max(1, m / std::max(1, shape.microbatch_group_size > 0 ? shape.microbatch_group_size : p));
  int const largest = (m + groups - 1) / groups;

  // The order in which every rank goes through (chunk, microbatch), forwards and backwards.
  std::vector<ChunkTurn> forward, backward;
  for (int g = 0, first = 0; g < groups; ++g) {
    int const size = m / groups + (g < m % groups ? 1 : 0);
    for (int c = 0; c < v; ++c)
      for (int i = 0; i < size; ++i) {
        forward.push_back({c, first + i});
        backward.push_back({v - 1 - c, first + i});
      }
    first += size;
  }

  std::size_t const all = forward.size();
  for (int rank = 0; rank < p; ++rank) {
    auto& list = program.ranks[static_cast<std::size_t>(rank)];
    list.reserve(2 * all);
    auto const add = [&](Op op, ChunkTurn at) {
      list.push_back({op, stage_of(Placement::loop, p, rank, at.chunk), at.microbatch});
    };
    // The first backward needs the first group through all chunks, and the way to the last rank and back.
    int const ahead = v == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (v - 1) * largest;
    std::size_t const warmup = std::min(all, static_cast<std::size_t>(ahead));
    for (std::size_t i = 0; i < warmup; ++i) add(Op::forward, forward[i]);
    for (std::size_t i = 0; i < all; ++i) {
      if (warmup + i < all) add(Op::forward, forward[warmup + i]);
      add(Op::backward, backward[i]);
    }
  }
  return program;
}

}  // namespace

extern Generator const generator_interleaved_1f1b;
Generator const generator_interleaved_1f1b{.name = "interleaved_1f1b",
                                           .help =
                                               "1f1b with v stages per rank; bubble (p-1)/(v m), 1 + (p-1)/(p v) times "
                                               "the memory of 1f1b, v times the messages",
                                           .stages_per_rank = 2,
                                           .any_stages_per_rank = true,
                                           .any_group_size = true,
                                           .make = interleaved};

}  // namespace p3d::schedule
