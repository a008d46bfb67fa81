// SPDX-License-Identifier: Apache-2.0
// The slot pass: activation slots by liveness, so that the peak of the activation memory is read off the program.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/schedule.hpp>

#include <algorithm>
#include <functional>
#include <queue>

namespace p3d::schedule {
namespace {

struct Lifetimes {
  std::vector<int> begin;  ///< action of the rank before which the slot of each cell is taken, -1: never
  std::vector<int> end;    ///< action after which that slot is free
};

/// The lifetimes of slots between the actions that use them.
Lifetimes lifetimes(Program const& program) {
  auto const cells = static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches);
  Lifetimes life{std::vector<int>(cells, -1), std::vector<int>(cells, -1)};
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (a.microbatch < 0 || is_vocabulary(a.op)) continue;
      std::size_t const at = cell(program, a.stage, a.microbatch);
      if (life.begin[at] < 0) life.begin[at] = static_cast<int>(i);
      life.end[at] = std::max(life.end[at], static_cast<int>(i));
      for_shared_slots(program, a, [&](int stage) {
        int& end = life.end[cell(program, stage, a.microbatch)];
        end = std::max(end, static_cast<int>(i));
      });
    }
  return life;
}

void assign_slots(Program& program, Lifetimes const& life) {
  auto const microbatches = static_cast<std::size_t>(program.num_microbatches);
  std::vector<int> slot_of(life.begin.size(), -1);
  program.num_slots.assign(static_cast<std::size_t>(program.num_stages), 0);
  std::vector<int> order;
  for (int s = 0; s < program.num_stages; ++s) {
    auto const at = [&](int m) { return cell(program, s, m); };
    order.clear();
    for (std::size_t m = 0; m < microbatches; ++m)
      if (life.begin[at(static_cast<int>(m))] >= 0) order.push_back(static_cast<int>(m));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return life.begin[at(a)] < life.begin[at(b)]; });
    using Busy = std::pair<int, int>;  // (last action, slot)
    std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
    std::priority_queue<int, std::vector<int>, std::greater<>> free;
    int& count = program.num_slots[static_cast<std::size_t>(s)];
    for (int m : order) {
      for (; !busy.empty() && busy.top().first < life.begin[at(m)]; busy.pop()) free.push(busy.top().second);
      if (free.empty()) free.push(count++);
      slot_of[at(m)] = free.top();
      busy.emplace(life.end[at(m)], free.top());
      free.pop();
    }
  }
  for (auto& actions : program.ranks)
    for (Action& a : actions)
      if (a.microbatch >= 0)
        a.slot =
            is_vocabulary(a.op) ? vocabulary_slot(a.op, a.microbatch) : slot_of[cell(program, a.stage, a.microbatch)];
}

}  // namespace

void assign_slots(Program& compute, int lookahead, ReceiveTimes const& times) {
  P3D_REQUIRE(lookahead >= 0, "a slot is taken at or before its first use");
  Lifetimes life = lifetimes(compute);
  // No receives yet: keep the slot from where the receive must be posted at the latest, or `lookahead` actions earlier.
  std::vector<int> const& deadline = times.deadlines.activation;
  for (std::size_t k = 0; k < deadline.size(); ++k)
    if (deadline[k] >= 0) life.begin[k] = std::max(0, std::min(life.begin[k], deadline[k]) - lookahead);
  assign_slots(compute, life);
}

void assign_slots(Program& program, int lookahead) {
  require_in_range(program);
  bool const messages = std::any_of(program.ranks.begin(), program.ranks.end(), [](auto const& actions) {
    return std::any_of(actions.begin(), actions.end(), [](Action const& a) { return is_message(a.op); });
  });
  messages ? assign_slots(program, lifetimes(program)) : assign_slots(program, lookahead, ReceiveTimes(program));
}

std::vector<int> split_backwards_at_a_time(Program const& program, int first_slot) {
  require_in_range(program);
  auto const stages = static_cast<std::size_t>(program.num_stages);
  std::vector<int> now(stages, 0), most(stages, 0);
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) {
      auto const s = static_cast<std::size_t>(a.stage);
      if (a.slot < first_slot) continue;
      if (a.op == Op::backward_input) most[s] = std::max(most[s], ++now[s]);
      if (a.op == Op::backward_weight) --now[s];
    }
  return most;
}

}  // namespace p3d::schedule
