// SPDX-License-Identifier: Apache-2.0
#pragma once
// ZB-H1 and ZB-H2 (arXiv 2401.10241, section 2 and figures 2 and 3): 1F1B with the backward split. The input part goes
// on at once, the weight part waits for a time when the rank would have nothing to do.
//
// With k = 1 (H1) or 2 (H2), rank r warms up with k (p-1-r) forwards and lets k r weight parts wait, so every rank
// keeps at most k (p-1) + 1 microbatches: p for H1, as the first rank of 1F1B; 2p - 1 for H2. Bubble of a rank, from
// its first to its last action (table 1 of the paper, with b the input part): H1 (p-1)(f + b - w), H2 (p-1)(f + b -
// 2w).

#include "common.hpp"

#include <algorithm>

namespace p3d::schedule {

inline Program zero_bubble(Shape const& shape, int k) {
  Program program = empty_program(shape);
  int const m = shape.num_microbatches;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    auto& list = program.ranks[static_cast<std::size_t>(rank)];
    list.reserve(3 * static_cast<std::size_t>(m));
    int const warmup = std::min(k * (shape.num_ranks - 1 - rank), m), delay = std::min(k * rank, m);
    for (int i = 0; i < warmup; ++i) list.push_back({Op::forward, rank, i});
    for (int i = 0; i < m; ++i) {
      if (warmup + i < m) list.push_back({Op::forward, rank, warmup + i});
      list.push_back({Op::backward_input, rank, i});
      if (i >= delay) list.push_back({Op::backward_weight, rank, i - delay});
    }
    for (int i = m - delay; i < m; ++i) list.push_back({Op::backward_weight, rank, i});
  }
  return program;
}

}  // namespace p3d::schedule
