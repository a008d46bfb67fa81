// SPDX-License-Identifier: Apache-2.0
// The rank x step table, for people and for errors: every action takes one step, so that a row shows what its rank does
// beside the others. Example: with two ranks and 1F1B the row of rank 1 begins with an empty cell, then 1F0 1B0.

#include "channels.hpp"

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace p3d::schedule {
namespace {

/// Steps of the actions that are shown, every action one step long. Made for wrong programs too: actions that name
/// what does not exist wait for nothing, and where nothing can run the lowest rank goes on regardless.
class StepTable {
public:
  StepTable(Program const& program, int marked_rank, int marked_index)
      : program_(program), marked_rank_(marked_rank), marked_index_(marked_index) {
    auto const cells =
        static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches);
    forward_.assign(cells, unknown);
    backward_.assign(cells, unknown);
    steps.resize(program.ranks.size());
    for (std::size_t rank = 0; rank < steps.size(); ++rank) steps[rank].assign(program.ranks[rank].size(), -1);
    next_.assign(steps.size(), 0);
    clock_.assign(steps.size(), 0);
    run();
  }

  std::vector<std::vector<int>> steps;  ///< step of each action of each rank, -1: not shown
  int count = 0;                        ///< steps in all

private:
  static constexpr int unknown = -1;

  bool known_cell(Action const& a) const {
    return a.stage >= 0 && a.stage < program_.num_stages && a.microbatch >= 0 &&
           a.microbatch < program_.num_microbatches;
  }

  /// The step at which the action's inputs are there; unknown: not yet.
  int inputs(Action const& a) const {
    if (!known_cell(a) || !is_compute(a.op) || a.op == Op::backward_weight) return 0;
    std::size_t const at = cell(program_, a.stage, a.microbatch);
    auto const stride = static_cast<std::size_t>(program_.num_microbatches);
    if (a.op == Op::forward) return a.stage == 0 ? 0 : forward_[at - stride];
    return a.stage + 1 == program_.num_stages ? forward_[at] : backward_[at + stride];
  }

  /// Runs a rank until it waits; with `force`, its next action does not wait.
  bool advance(std::size_t rank, bool force) {
    auto const& actions = program_.ranks[rank];
    bool moved = false;
    for (; next_[rank] < actions.size(); ++next_[rank]) {
      Action const& a = actions[next_[rank]];
      bool const marked = static_cast<int>(rank) == marked_rank_ && static_cast<int>(next_[rank]) == marked_index_;
      if (computes(a.op) || marked) {
        int const ready = inputs(a);
        if (ready == unknown && !force) return moved;
        force = false;
        int const step = std::max(clock_[rank], std::max(ready, 0));
        steps[rank][next_[rank]] = step;
        clock_[rank] = step + 1;
        count = std::max(count, step + 1);
        if (known_cell(a) && a.op == Op::forward) forward_[cell(program_, a.stage, a.microbatch)] = step + 1;
        if (known_cell(a) && makes_input_gradient(a.op)) backward_[cell(program_, a.stage, a.microbatch)] = step + 1;
      }
      moved = true;
    }
    return moved;
  }

  void run() {
    for (bool left = true; left;) {
      bool moved = false;
      for (std::size_t rank = 0; rank < steps.size(); ++rank) moved = advance(rank, false) || moved;
      left = false;
      for (std::size_t rank = 0; rank < steps.size() && !left; ++rank)
        if (next_[rank] < program_.ranks[rank].size()) {
          left = true;
          if (!moved) advance(rank, true);
        }
    }
  }

  Program const& program_;
  int marked_rank_, marked_index_;
  std::vector<int> forward_, backward_;  ///< the step after F of each cell, and after B or I
  std::vector<std::size_t> next_;
  std::vector<int> clock_;
};

/// [first, last) of at most `limit` (0: all) of `count`, with `mark` in its middle where possible.
struct Window {
  int first, last;
  Window(int count, int limit, int mark) : first(0), last(count) {
    if (limit <= 0 || limit >= count) return;
    first = std::clamp(mark - limit / 2, 0, count - limit);
    last = first + limit;
  }
};

}  // namespace

std::string to_table(Program const& program, int marked_rank, int marked_index, int max_ranks, int max_steps) {
  StepTable const timeline(program, marked_rank, marked_index);
  int const num_ranks = static_cast<int>(program.ranks.size());
  int mark_step = 0;
  bool const mark = marked_rank >= 0 && marked_rank < num_ranks && marked_index >= 0 &&
                    marked_index < static_cast<int>(program.ranks[static_cast<std::size_t>(marked_rank)].size());
  if (mark) mark_step = timeline.steps[static_cast<std::size_t>(marked_rank)][static_cast<std::size_t>(marked_index)];
  Window const rows(num_ranks, max_ranks, std::max(marked_rank, 0));
  Window const columns(timeline.count, max_steps, mark_step);

  std::vector<std::vector<std::string>> cells;
  std::size_t width = fmt::formatted_size("{}", columns.last);
  for (int rank = rows.first; rank < rows.last; ++rank) {
    auto& row = cells.emplace_back(static_cast<std::size_t>(columns.last - columns.first), ".");
    auto const& steps = timeline.steps[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] < columns.first || steps[i] >= columns.last) continue;
      Action shown = program.ranks[static_cast<std::size_t>(rank)][i];
      shown.slot = -1;
      bool const here = rank == marked_rank && static_cast<int>(i) == marked_index;
      auto& text = row[static_cast<std::size_t>(steps[i] - columns.first)];
      text = here ? fmt::format(">{}<", to_string(shown)) : to_string(shown);
      width = std::max(width, text.size());
    }
  }

  std::size_t const label = std::max<std::size_t>(4, fmt::formatted_size("{}", num_ranks));
  std::string table = fmt::format("{:>{}} |", "rank", label);
  for (int step = columns.first; step < columns.last; ++step)
    fmt::format_to(std::back_inserter(table), " {:>{}}", step, width);
  table += '\n';
  for (std::size_t row = 0; row < cells.size(); ++row) {
    fmt::format_to(std::back_inserter(table), "{:>{}} |", rows.first + static_cast<int>(row), label);
    for (auto const& text : cells[row]) fmt::format_to(std::back_inserter(table), " {:>{}}", text, width);
    table += '\n';
  }
  if (rows.last - rows.first < num_ranks || columns.last - columns.first < timeline.count)
    table += fmt::format("(ranks {} to {} of {}, steps {} to {} of {})\n", rows.first, rows.last - 1, num_ranks,
                         columns.first, columns.last - 1, timeline.count);
  return table;
}

}  // namespace p3d::schedule
