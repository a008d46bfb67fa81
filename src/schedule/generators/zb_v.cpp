// SPDX-License-Identifier: Apache-2.0
// ZB-V (arXiv 2401.10241, section 6 and figure 6): two stages per rank in a V, backward split. As the first rank also
// holds the last stage, gradients come back early enough that no rank waits from its first to its last action (f = i =
// w, m >= 2p - 1), in the memory of 1F1B: p microbatches of both stages, 2p of one.
//
// Rank r is r steps behind rank 0 in all of it. Its phases: fill the way down the V; alternate until the forwards come
// up the other arm; let that arm's gradients start; steady state; drain inputs first where the next rank waits for
// them.

#include "common.hpp"

#include <algorithm>

namespace p3d::schedule {

extern Generator const generator_zb_v;
Generator const generator_zb_v{
    .name = "zb_v",
    .help = "two stages per rank in a V, split backward; no rank waits when f = i = w and m >= 2p - 1; memory of 1f1b",
    .stages_per_rank = 2,
    .make = [](Shape const& shape) {
      Program program = empty_program(shape, Placement::v);
      int const p = shape.num_ranks;
      int const count =
          std::max(2 * p - 1, shape.num_microbatches);  // the pattern's own minimum; VList leaves out the surplus
      for (int rank = 0; rank < p; ++rank) {
        VList list(program, rank);
        auto const backward = [&](int chunk) {
          list.input(chunk);
          list.weight(chunk);
        };
        for (int i = 0; i < 2 * (p - rank) - 1; ++i) list.forward(0);
        for (int i = 0; i < rank; ++i) {
          list.forward(1);
          list.forward(0);
        }
        for (int i = 0; i < p - rank; ++i) {
          list.forward(1);
          backward(1);
        }
        while (list.forwards(1) < count) {
          if (list.forwards(0) < count) list.forward(0);
          backward(0);
          list.forward(1);
          backward(1);
        }
        for (int i = 0; i < rank; ++i) {
          list.input(0);
          list.input(1);
        }
        for (int i = 0; i < p - rank; ++i) backward(0);
        for (int chunk : {1, 0})
          while (list.weights(chunk) < count) list.weight(chunk);
      }
      return program;
    }};

}  // namespace p3d::schedule
