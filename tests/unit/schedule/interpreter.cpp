// SPDX-License-Identifier: Apache-2.0
#include "interpreter.hpp"

#include "interpreter_machine.hpp"

#include <random>
#include <set>

namespace p3d::test {
namespace {

enum class Status { can_go_on, ended, stuck };

/// Machines reached from `from` by one action of one rank.
template <class Visit>
Status successors(Machine const& from, int ranks, Visit visit) {
  bool ended = true, moved = false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (from.ended(rank)) continue;
    ended = false;
    Machine next = from;
    bool const went = next.go(rank);
    if (went || next.state() != from.state()) {  // started a blocking send: also a step forward
      moved = true;
      visit(std::move(next));
    }
  }
  return ended ? Status::ended : moved ? Status::can_go_on : Status::stuck;
}

}  // namespace

Report interpret_all_orders(schedule::Program const& program, schedule::Execution execution, schedule::Pass pass) {
  std::set<std::vector<std::size_t>> known;
  std::vector<Machine> open{Machine(program, execution, pass)};
  try {
    while (!open.empty()) {
      Machine const machine = std::move(open.back());
      open.pop_back();
      Status const status = successors(machine, program.num_ranks, [&](Machine next) {
        if (known.insert(next.state()).second) open.push_back(std::move(next));
      });
      if (status == Status::stuck) return {Outcome::deadlock, "no rank can go on"};
      if (status == Status::ended) machine.check_end();
    }
  } catch (Error const& error) {
    return {error.outcome, error.why};
  }
  return {};
}

Report interpret_one_order(schedule::Program const& program, schedule::Execution execution, unsigned seed,
                           schedule::Pass pass) {
  std::mt19937 random(seed);
  Machine machine(program, execution, pass);
  std::vector<int> order;
  for (int rank = 0; rank < program.num_ranks; ++rank) order.push_back(rank);
  try {
    for (;;) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
      bool moved = false, ended = true;
      for (int rank : order) {
        auto const before = machine.state();
        ended = ended && machine.ended(rank);
        for (unsigned runs = 1 + random() % 6; runs > 0 && machine.go(rank); --runs) {
        }
        moved = moved || machine.state() != before;
      }
      if (ended) {
        machine.check_end();
        return {};
      }
      if (!moved) return {Outcome::deadlock, "no rank can go on"};
    }
  } catch (Error const& error) {
    return {error.outcome, error.why};
  }
}

}  // namespace p3d::test
