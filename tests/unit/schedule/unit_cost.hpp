// SPDX-License-Identifier: Apache-2.0
#pragma once
// An event simulation of compute actions with fixed costs and free messages, independent of p3d's own simulator.

#include <p3d/schedule/action.hpp>
#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace p3d::test {

struct Costs {
  double forward = 1, input = 1, weight = 1;  ///< B costs input + weight
};

struct FreeRun {
  double makespan = -1;      ///< when the last rank ends; negative if the lists cannot be run
  double longest_span = -1;  ///< the longest time from the first to the last action of a rank
};

/// Every action as early as the list and its inputs allow. Costs are those of one stage.
inline FreeRun run_free(schedule::Program const& program, Costs costs) {
  using schedule::Op;
  auto const stages = static_cast<std::size_t>(program.num_stages);
  auto const microbatches = static_cast<std::size_t>(program.num_microbatches);
  std::vector<std::vector<double>> forward(stages, std::vector<double>(microbatches, -1)), backward = forward;
  std::vector<std::size_t> next(program.ranks.size(), 0);
  std::vector<double> clock(program.ranks.size(), 0), begin(program.ranks.size(), -1);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r)
      for (; next[r] < program.ranks[r].size(); ++next[r]) {
        auto const& a = program.ranks[r][next[r]];
        if (!is_compute(a.op)) continue;
        auto const s = static_cast<std::size_t>(a.stage), m = static_cast<std::size_t>(a.microbatch);
        double ready = 0;
        if (a.op == Op::forward && s > 0) ready = forward[s - 1][m];
        if (a.op == Op::backward || a.op == Op::backward_input)
          ready = s + 1 < stages ? backward[s + 1][m] : forward[s][m];
        if (a.op == Op::backward_weight) ready = backward[s][m];
        if (ready < 0) break;
        double const cost = a.op == Op::forward          ? costs.forward
                            : a.op == Op::backward       ? costs.input + costs.weight
                            : a.op == Op::backward_input ? costs.input
                                                         : costs.weight;
        double const start = std::max(clock[r], ready);
        if (begin[r] < 0) begin[r] = start;
        clock[r] = start + cost;
        if (a.op == Op::forward)
          forward[s][m] = clock[r];
        else if (a.op != Op::backward_weight)
          backward[s][m] = clock[r];
        moved = true;
      }
  }
  FreeRun run;
  for (std::size_t r = 0; r < next.size(); ++r) {
    if (next[r] < program.ranks[r].size()) return {};
    run.makespan = std::max(run.makespan, clock[r]);
    run.longest_span = std::max(run.longest_span, clock[r] - begin[r]);
  }
  return run;
}

/// The largest number of microbatches between their F and the end of their backward on a stage, in list order.
inline int peak_live(schedule::Program const& program, int stage) {
  using schedule::Op;
  int live = 0, peak = 0;
  for (auto const& a : program.ranks[static_cast<std::size_t>(program.stage_rank[static_cast<std::size_t>(stage)])]) {
    if (a.stage != stage) continue;
    if (a.op == Op::forward) peak = std::max(peak, ++live);
    if (a.op == Op::backward || a.op == Op::backward_weight) --live;
  }
  return peak;
}

/// The same over all stages of a rank, counted together.
inline int peak_live_on_rank(schedule::Program const& program, int rank) {
  using schedule::Op;
  int live = 0, peak = 0;
  for (auto const& a : program.ranks[static_cast<std::size_t>(rank)]) {
    if (a.op == Op::forward) peak = std::max(peak, ++live);
    if (a.op == Op::backward || a.op == Op::backward_weight) --live;
  }
  return peak;
}

}  // namespace p3d::test
