// SPDX-License-Identifier: Apache-2.0
// Two passes over weight gradients: the reductions at their ends, and the weight parts that the last stage puts off.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace p3d::schedule {

namespace {

/// For each stage, the places in its rank's list where the gradients of one worker are complete.
std::vector<std::set<std::size_t>> ends_of_workers(Program const& program, int workers) {
  int const each = program.num_microbatches / workers;
  std::vector<std::map<int, std::size_t>> last(static_cast<std::size_t>(program.num_stages));
  for (auto const& actions : program.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (!makes_weight_gradient(a.op) && !makes_vocabulary_gradient(a.op)) continue;
      int const worker = a.microbatch / each;
      for (int stage : {a.stage, lender(program, a.stage)}) {
        if (stage < 0) continue;
        auto& of_stage = last[static_cast<std::size_t>(stage)];
        if (!of_stage.empty() && of_stage.rbegin()->first > worker)
          base::refuse({.expected = "a schedule that ends the gradients of a worker of comm.workers before it begins "
                                    "those of the next one",
                        .found = fmt::format("{} of worker {} behind gradients of worker {} of this replica",
                                             to_string(a), worker, of_stage.rbegin()->first),
                        .where = "pipeline.schedule; comm.workers",
                        .fix = program.divides_vocabulary
                                   ? "set comm.workers to parallel.dp, or pipeline.vocab_parallel to false"
                                   : "set comm.workers to parallel.dp, or choose another schedule, such as \"1f1b\""});
        of_stage[worker] = i;
      }
    }
  }
  std::vector<std::set<std::size_t>> out;
  for (auto const& of_stage : last) {
    auto& places = out.emplace_back();
    for (auto const& [worker, place] : of_stage) places.insert(place);
  }
  return out;
}

}  // namespace

void add_reductions(Program& program, int workers) {
  require_in_range(program);
  P3D_REQUIRE(workers > 0 && program.num_microbatches % workers == 0, "workers have equal numbers of microbatches");
  auto const ends = ends_of_workers(program, workers);
  program.workers = workers;
  std::vector<Action> merged;
  for (auto& actions : program.ranks) {
    merged.clear();
    merged.reserve(actions.size() + 2);
    std::vector<int>
        pending;  // stages whose reduction waits until the send that follows their last backward is under way
    auto const reduce_pending = [&] {
      for (int stage : pending) merged.push_back({Op::reduce_gradients, stage});
      pending.clear();
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      P3D_REQUIRE(a.op != Op::reduce_gradients && a.op != Op::optimizer_step, "reductions are added once");
      if (!is_send(a.op)) reduce_pending();
      merged.push_back(a);
      if (!computes(a.op)) continue;
      for (int stage : {a.stage, lender(program, a.stage)})
        if (stage >= 0 && ends[static_cast<std::size_t>(stage)].contains(i)) pending.push_back(stage);
    }
    reduce_pending();
    merged.push_back({Op::optimizer_step});
    actions = merged;
  }
}

bool defer_weight_gradients(Program& compute, int limit) {
  require_in_range(compute);
  P3D_REQUIRE(limit > 0, "some weight gradients are put off");
  int const last = compute.num_stages - 1;
  auto& actions = compute.ranks[static_cast<std::size_t>(rank_of(compute, last))];
  if (std::none_of(actions.begin(), actions.end(),
                   [&](Action const& a) { return a.op == Op::backward && a.stage == last; }))
    return false;
  std::vector<Action> out;
  std::deque<int> waiting;
  auto const make_up = [&] {
    out.push_back({Op::backward_weight, last, waiting.front()});
    waiting.pop_front();
  };
  for (Action const& a : actions) {
    if (a.op != Op::backward || a.stage != last) {
      out.push_back(a);
      continue;
    }
    out.push_back({Op::backward_input, last, a.microbatch});
    waiting.push_back(a.microbatch);
    if (static_cast<int>(waiting.size()) > limit) make_up();
  }
  while (!waiting.empty()) make_up();
  actions = std::move(out);
  return true;
}

}  // namespace p3d::schedule
