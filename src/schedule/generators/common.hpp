// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers that generators share.

#include <p3d/base/error.hpp>
#include <p3d/schedule/registry.hpp>

#include <array>
#include <cstddef>

namespace p3d::schedule {

/// The placement of stages on ranks: a loop gives rank r the stages r, p + r, 2p + r, ...; a V turns round at the last
/// rank, so that rank 0 holds the first and the last of 2p stages.
enum class Placement { loop, v };

inline int stage_of(Placement placement, int num_ranks, int rank, int chunk) {
  bool const back = placement == Placement::v && chunk % 2 == 1;
  return chunk * num_ranks + (back ? num_ranks - 1 - rank : rank);
}

/// A program without actions.
inline Program empty_program(Shape const& shape, Placement placement = Placement::loop) {
  P3D_REQUIRE(shape.num_ranks >= 1, "a pipeline has at least one rank");
  P3D_REQUIRE(shape.num_microbatches >= 1, "a step has at least one microbatch");
  P3D_REQUIRE(shape.stages_per_rank >= 1, "a rank has at least one stage");
  Program program;
  program.num_ranks = shape.num_ranks;
  program.num_stages = shape.num_ranks * shape.stages_per_rank;
  program.num_microbatches = shape.num_microbatches;
  program.stage_rank.resize(static_cast<std::size_t>(program.num_stages));
  for (int chunk = 0; chunk < shape.stages_per_rank; ++chunk)
    for (int rank = 0; rank < shape.num_ranks; ++rank)
      program.stage_rank[static_cast<std::size_t>(stage_of(placement, shape.num_ranks, rank, chunk))] = rank;
  program.ranks.resize(static_cast<std::size_t>(shape.num_ranks));
  return program;
}

/// Writes the list of one rank with two stages in a V as counts of actions: every action is for the next microbatch of
/// its kind and chunk, and those after the last microbatch are left out.
class VList {
public:
  VList(Program& program, int rank)
      : list_(program.ranks[static_cast<std::size_t>(rank)]),
        microbatches_(program.num_microbatches),
        stage_{rank, program.num_stages - 1 - rank} {
    list_.reserve(6 * static_cast<std::size_t>(microbatches_));
  }
  void forward(int chunk) { add(Op::forward, chunk, 0); }
  void input(int chunk) { add(Op::backward_input, chunk, 1); }
  void weight(int chunk) { add(Op::backward_weight, chunk, 2); }
  /// Backward in one; do not mix with input() before weight() has caught up.
  void backward(int chunk) {
    ++count(chunk, 2);
    add(Op::backward, chunk, 1);
  }
  int forwards(int chunk) { return count(chunk, 0); }
  int inputs(int chunk) { return count(chunk, 1); }
  int weights(int chunk) { return count(chunk, 2); }

private:
  int& count(int chunk, std::size_t kind) { return counts_[static_cast<std::size_t>(chunk)][kind]; }
  void add(Op op, int chunk, std::size_t kind) {
    int const microbatch = count(chunk, kind)++;
    if (microbatch < microbatches_) list_.push_back({op, stage_[static_cast<std::size_t>(chunk)], microbatch});
  }

  std::vector<Action>& list_;
  int microbatches_;
  std::array<int, 2> stage_;
  std::array<std::array<int, 3>, 2> counts_{};
};

}  // namespace p3d::schedule
