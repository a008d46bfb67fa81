// SPDX-License-Identifier: Apache-2.0
#pragma once
// An interpreter of complete programs, independent of the validator: it moves values instead of counting, and tries
// every order in which the ranks can go on (or random ones, for programs with too many states).

#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/schedule.hpp>

#include <string>
#include <vector>

namespace p3d::test {

enum class Outcome { fine, deadlock, misuse, wrong_result };

struct Report {
  Outcome outcome = Outcome::fine;
  std::string why;
};

/// Follows every interleaving; the outcome of the worst. Only for small programs: (actions per rank)^ranks states.
Report interpret_all_orders(schedule::Program const& program, schedule::Execution execution,
                            schedule::Pass pass = schedule::Pass::training);

/// Follows one interleaving, drawn from `seed`.
Report interpret_one_order(schedule::Program const& program, schedule::Execution execution, unsigned seed,
                           schedule::Pass pass = schedule::Pass::training);

/// The parts of a graph, for tests to change.
struct LooseGraph {
  std::vector<std::vector<std::vector<schedule::Edge>>> edges;  ///< by rank and action + 1
  std::vector<int> givers;                                      ///< by event
  std::vector<bool> is_copy;                                    ///< by event
  std::vector<int> before;                                      ///< by event: the message before it on its channel, -1
};
LooseGraph loosen(schedule::Graph const& graph);

/// Follows one interleaving, in which ranks wait for what the graph says, with copies of activations that take long.
/// Not fine where an action then begins before what it reads is there, or waits for more than the interpreter waits.
Report interpret_graph(schedule::Program const& program, schedule::Execution execution, LooseGraph const& graph,
                       unsigned seed, schedule::Pass pass = schedule::Pass::training);

}  // namespace p3d::test
