// SPDX-License-Identifier: Apache-2.0
// Two passes over weight gradients: the reductions at their ends, and the weight parts that the last stage puts off.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <algorithm>
#include <deque>
#include <utility>

namespace p3d::schedule {

void add_reductions(Program& program) {
  require_in_range(program);
  std::vector<int> last(static_cast<std::size_t>(program.num_stages), -1);
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (makes_weight_gradient(actions[i].op) || makes_vocabulary_gradient(actions[i].op))
        for (int stage : {actions[i].stage, lender(program, actions[i].stage)})
          if (stage >= 0) last[static_cast<std::size_t>(stage)] = static_cast<int>(i);
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
        if (stage >= 0 && last[static_cast<std::size_t>(stage)] == static_cast<int>(i)) pending.push_back(stage);
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
