// SPDX-License-Identifier: Apache-2.0
// Errors planted in the graph of a program that runs: needs left out, events of another microbatch, gifts that do not
// come. The independent interpreter runs the program as the graph says, and finds them. With the graph as it is built,
// an action begins exactly when the interpreter lets it.

#include "interpreter.hpp"
#include "programs.hpp"

#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <set>

using namespace p3d::schedule;
using namespace p3d::test;

namespace {

Program offloaded(Program compute, int parts, Execution how) {
  Program p = complete(refine(compute, std::vector<int>(static_cast<std::size_t>(compute.num_stages), parts)));
  offload_activations(p, 2, how);
  return p;
}

/// The first outcome that is not fine, of some interleavings.
Report interpret(Program const& program, Execution how, LooseGraph const& graph, unsigned seeds) {
  for (unsigned seed = 0; seed < seeds; ++seed)
    if (auto const report = interpret_graph(program, how, graph, seed); report.outcome != Outcome::fine) return report;
  return {};
}

}  // namespace

TEST(GraphErrors, a_graph_without_errors_lets_actions_begin_when_the_interpreter_does) {
  int checked = 0;
  for (Generator const* g : generators())
    for (int p : {1, 3}) {
      int const m = std::max(g->smallest_microbatches(p), p + 3);
      Program const compute = generate(g->name, {p, m, 0});
      auto const expect_fine = [&](Program const& program, Execution how, char const* what) {
        if (!validate(program, how).empty()) return;
        ++checked;
        auto const report = interpret(program, how, loosen(build_graph(program, how)), 2);
        EXPECT_EQ(report.outcome, Outcome::fine) << g->name << " on " << p << ", " << what << ": " << report.why << '\n'
                                                 << to_text(program);
      };
      for (Execution how : {as_executed, Execution{true, 0}, Execution{true, 1}, Execution{false, 1}})
        expect_fine(complete(compute, 1, 1), how, "plain");
      expect_fine(divided(compute, 0.1), as_executed, "divided");
      for (int parts : {1, 2})
        for (Execution how : {as_executed, as_executed_waiting})
          expect_fine(offloaded(compute, parts, how), how, "offloaded");
      for (bool ahead : {false, true}) {
        Program paired = compute;
        if (ahead) exchange_pairs(paired);
        paired = complete(std::move(paired));
        close_pairs(paired);
        expect_fine(paired, {true, any_number, true}, "pairs");
      }
    }
  EXPECT_GT(checked, 200);
}

TEST(GraphErrors, every_kind_of_edge_is_missed) {
  using Kind = std::tuple<Op, Tie, EventKind>;
  std::map<Kind, std::pair<int, int>> found;  // of how many
  int wrong_events = 0, wrong_found = 0;
  auto const plant = [&](Program const& program, Execution how) {
    ASSERT_TRUE(validate(program, how).empty());
    Graph const graph = build_graph(program, how);
    LooseGraph const good = loosen(graph);
    for (std::size_t r = 0; r < good.edges.size(); ++r)
      for (std::size_t i = 0; i < good.edges[r].size(); ++i)
        for (std::size_t k = 0; k < good.edges[r][i].size(); ++k) {
          Edge const edge = good.edges[r][i][k];
          Op const op = i == 0 ? Op::embed_backward : program.ranks[r][i - 1].op;
          auto& [some, all] = found[{op, edge.tie, graph.kind(edge.event)}];
          LooseGraph bad = good;
          bad.edges[r][i].erase(bad.edges[r][i].begin() + static_cast<std::ptrdiff_t>(k));
          ++all;
          some += interpret(program, how, bad, 4).outcome != Outcome::fine;
          std::uint32_t const event = edge.event, other = event + 1;
          if (other >= graph.num_events() || graph.kind(other) != graph.kind(event)) continue;
          bad = good;
          bad.edges[r][i][k].event = other;
          ++wrong_events;
          wrong_found += interpret(program, how, bad, 4).outcome != Outcome::fine;
        }
  };
  plant(complete(generate("zb_h1", {3, 5})), as_executed);
  plant(complete(one_f_one_b(3, 4)), {true, 1});
  plant(complete(gpipe(2, 3), 3), {true, 0});
  Program late = generate("1f1b", {3, 4});  // receives just before their use
  assign_slots(late);
  add_messages(late, 0, 0);
  add_reductions(late);
  plant(late, {true, 2});
  plant(divided(generate("1f1b", {3, 5}), 0.1), as_executed);
  plant(offloaded(generate("zb_h1", {3, 8}), 1, as_executed), as_executed);
  plant(offloaded(generate("1f1b", {2, 6}), 2, as_executed_waiting), as_executed_waiting);
  std::set<Kind> missed;
  int kinds = 0;
  for (auto const& [kind, count] : found) {
    auto const [op, tie, event] = kind;
    kinds += count.first > 0;
    std::cout << to_string({op, 0, 0}) << " tie " << static_cast<int>(tie) << " event " << static_cast<int>(event)
              << ": " << count.first << " of " << count.second << " left out\n";
    if (count.first == 0) missed.insert(kind);
  }
  // In these programs others wait for the same before.
  EXPECT_EQ(missed, (std::set<Kind>{{Op::send_gradient, Tie::needs, EventKind::message},
                                    {Op::optimizer_step, Tie::needs, EventKind::exchange}}));
  EXPECT_GE(kinds, 30);
  std::cout << wrong_found << " of " << wrong_events << " wrong events\n";
  EXPECT_GE(10 * wrong_found, 8 * wrong_events);
}
