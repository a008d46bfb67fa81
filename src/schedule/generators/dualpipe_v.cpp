// SPDX-License-Identifier: Apache-2.0
// DualPipeV: the half of DualPipe (arXiv 2412.19437, figure 5) that needs no second copy of the weights: two stages per
// rank in a V, backward split only where a rank would wait. In the steady state every forward of one stage is next to a
// backward of the other, where a compute-communication overlap within the pair could be built. Keeps 2p + 1 activations
// of one stage.

#include "common.hpp"

#include <deque>

namespace p3d::schedule {
namespace {

void list_of(Program& program, int rank) {
  int const p = program.num_ranks, m = program.num_microbatches, left = p - 1 - rank;
  auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  VList list(program, rank);
  std::deque<Action> delayed;  // weight parts
  auto const split = [&](int chunk) {
    list.input(chunk);
    Action w = actions.back();
    w.op = Op::backward_weight;
    delayed.push_back(w);
  };
  auto const one_weight = [&] {
    actions.push_back(delayed.front());
    delayed.pop_front();
  };
  for (int i = 0; i < 2 * left; ++i) list.forward(0);
  for (int i = 0; i <= rank; ++i)
    for (int chunk : {0, 1}) list.forward(chunk);
  for (int i = 0; i < left; ++i) {
    split(1);
    one_weight();
    list.forward(1);
  }
  for (int i = 0; i < m - 2 * p + rank + 1; ++i) {  // the steady state
    list.forward(0);
    list.backward(1);
    list.forward(1);
    list.backward(0);
  }
  for (int i = 0; i < left; ++i) {
    list.backward(1);
    list.forward(1);
    list.backward(0);
  }
  // The last rank + 1 backwards of both stages: the later half of these 2 (rank + 1) is split.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    int const chunk = 1 - i % 2;
    if (i <= rank)
      list.backward(chunk);
    else
      split(chunk);
  }
  for (int i = 0; i < left; ++i) {
    one_weight();
    split(0);
  }
  while (!delayed.empty()) one_weight();
}

}  // namespace

extern Generator const generator_dualpipe_v;
Generator const generator_dualpipe_v{
    .name = "dualpipe_v",
    .help = "forwards beside backwards, two stages per rank in a V; a rank waits (p-1) chunk steps when f = i = w",
    .stages_per_rank = 2,
    .smallest_microbatches = [](int num_ranks) { return 2 * num_ranks; },
    .make =
        [](Shape const& shape) {
          Program program = empty_program(shape, Placement::v);
          for (int rank = 0; rank < shape.num_ranks; ++rank) list_of(program, rank);
          return program;
        }};

}  // namespace p3d::schedule
