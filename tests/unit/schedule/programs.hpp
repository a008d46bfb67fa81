// SPDX-License-Identifier: Apache-2.0
#pragma once
// Programs for tests: random compute programs over any placement of the stages, with whole or split backwards, and
// programs with a divided vocabulary.

#include <p3d/schedule/action.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <random>
#include <utility>

namespace p3d::test {

/// The way of the executor with messages (plan::execution).
inline constexpr schedule::Execution as_executed{true, schedule::any_number};
/// That way where ranks of a stage wait for each other inside actions.
inline constexpr schedule::Execution as_executed_waiting{.sends_in_flight = schedule::any_number, .waits_inside = true};

/// A complete program of a compute program whose vocabulary is divided; an E takes the time `embed`.
inline schedule::Program divided(schedule::Program compute, double embed = 0.0) {
  schedule::VocabularyTimes times;
  times.stages.assign(static_cast<std::size_t>(compute.num_stages), {});
  times.embed = embed;
  divide_vocabulary(compute, times, schedule::VocabularyOrder::forwards_first);
  return complete(std::move(compute), 1, 1);
}

/// A uniform number in [0, n), the same on every platform.
inline int draw(std::mt19937& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

inline schedule::Program empty_program(std::vector<int> stage_rank, int ranks, int microbatches) {
  schedule::Program p;
  p.num_stages = static_cast<int>(stage_rank.size());
  p.num_ranks = ranks;
  p.num_microbatches = microbatches;
  p.stage_rank = std::move(stage_rank);
  p.ranks.resize(static_cast<std::size_t>(ranks));
  return p;
}

/// Appends actions that are ready, in random order, until all are there: always executable when messages cost nothing.
/// `split`: 0 all B, 1 all I and W, 2 mixed.
inline schedule::Program random_program(std::mt19937& random, std::vector<int> stage_rank, int ranks, int microbatches,
                                        int split) {
  using schedule::Action;
  using schedule::Op;
  schedule::Program p = empty_program(std::move(stage_rank), ranks, microbatches);
  auto const cells = static_cast<std::size_t>(p.num_stages * microbatches);
  enum { nothing, forward, input, all };  // how far a (stage, microbatch) is
  std::vector<int> state(cells, nothing);
  for (;;) {
    std::vector<Action> ready;
    for (int s = 0; s < p.num_stages; ++s)
      for (int m = 0; m < microbatches; ++m) {
        auto const at = static_cast<std::size_t>(s * microbatches + m), stride = static_cast<std::size_t>(microbatches);
        bool const has_input = s == 0 || state[at - stride] >= forward;
        bool const has_gradient = s + 1 == p.num_stages || state[at + stride] >= input;
        bool const split_this = split == 1 || (split == 2 && (s + m) % 2 == 0);
        if (state[at] == nothing && has_input) ready.push_back({Op::forward, s, m});
        if (state[at] == forward && has_gradient)
          ready.push_back({split_this ? Op::backward_input : Op::backward, s, m});
        if (state[at] == input) ready.push_back({Op::backward_weight, s, m});
      }
    if (ready.empty()) return p;
    Action const a = ready[static_cast<std::size_t>(draw(random, static_cast<int>(ready.size())))];
    state[static_cast<std::size_t>(a.stage * microbatches + a.microbatch)] = a.op == Op::forward          ? forward
                                                                             : a.op == Op::backward_input ? input
                                                                                                          : all;
    p.ranks[static_cast<std::size_t>(p.stage_rank[static_cast<std::size_t>(a.stage)])].push_back(a);
  }
}

}  // namespace p3d::test
