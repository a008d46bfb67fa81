// SPDX-License-Identifier: Apache-2.0
// A graph beside the machine: ranks may begin an action exactly when both let them.

#include "interpreter_machine.hpp"

#include <map>
#include <random>

namespace p3d::test {
namespace {

/// Events that happen as a graph says, beside a machine that runs the same program.
class GraphRun {
public:
  GraphRun(schedule::Program const& program, schedule::Execution execution, LooseGraph const& graph,
           schedule::Pass pass)
      : program_(program),
        graph_(graph),
        machine_(program, execution, pass, true),
        given_(graph.givers.size(), 0),
        copied_(graph.givers.size(), false),
        copies_(program.ranks.size()),
        at_(program.ranks.size(), 0),
        inside_(program.ranks.size(), false) {
    for (int rank = 0; rank < program.num_ranks; ++rank) give(rank, edges(rank, -1));
  }

  Report run(unsigned seed) {
    std::mt19937 random(seed);
    // One rank is far behind where the others let it.
    int const ranks = program_.num_ranks, slow = static_cast<int>(seed) % ranks;
    auto const some = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (;;) {
      bool moved = false;
      auto const run_a_while = [&](int rank) {
        for (int runs = 1 + some(4); runs > 0 && !machine_.ended(rank); --runs) moved = go(rank) || moved;
      };
      for (int k = 0, first = some(ranks); k < ranks; ++k)
        if (int const rank = (first + k) % ranks; rank != slow) run_a_while(rank);
      if (!moved || some(16) == 0) run_a_while(slow);
      // Copies last long: until nothing else is left, or a moment.
      if (!moved || some(8) == 0) moved = finish_copy(some(ranks)) || moved;
      for (int rank = 0; rank < ranks && !moved; ++rank) moved = finish_copy(rank);
      bool ended = true;
      for (int rank = 0; rank < ranks; ++rank) ended = ended && machine_.ended(rank);
      if (ended) break;
      if (!moved) return {Outcome::deadlock, "no rank can go on"};
    }
    machine_.check_end();
    return {};
  }

private:
  std::vector<schedule::Edge> const& edges(int rank, int index) const {
    return graph_.edges[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index + 1)];
  }
  bool happened(std::uint32_t event) const {
    for (int e = static_cast<int>(event); e >= 0; e = graph_.before[static_cast<std::size_t>(e)]) {
      auto const k = static_cast<std::size_t>(e);
      if (graph_.is_copy[k] ? !copied_[k] : given_[k] < graph_.givers[k]) return false;
      for (std::uint32_t delay : delayed_by(k))
        if (!happened(delay)) return false;
    }
    return true;
  }
  std::vector<std::uint32_t> delayed_by(std::size_t event) const {
    auto const found = delays_.find(event);
    return found == delays_.end() ? std::vector<std::uint32_t>{} : found->second;
  }
  bool all_happened(std::vector<schedule::Edge> const& list, schedule::Tie tie) const {
    return std::all_of(list.begin(), list.end(),
                       [&](schedule::Edge const& e) { return e.tie != tie || happened(e.event); });
  }
  void give(int rank, std::vector<schedule::Edge> const& list) {
    for (auto const& e : list) {
      if (e.tie != schedule::Tie::gives) continue;
      ++given_[e.event];
      if (graph_.is_copy[e.event]) copies_[static_cast<std::size_t>(rank)].push_back(e.event);
      for (auto const& d : list)
        if (d.tie == schedule::Tie::delays) delays_[e.event].push_back(d.event);
    }
  }
  bool finish_copy(int rank) {
    if (!machine_.finish_copy(rank)) return false;
    auto& started = copies_[static_cast<std::size_t>(rank)];
    if (started.empty()) throw Error{Outcome::misuse, "the graph lacks a copy"};
    copied_[started.front()] = true;
    started.pop_front();
    return true;
  }

  /// One action of a rank, or two that are a pair, if the graph and the machine both let it begin. False: neither does.
  bool go(int rank) {
    auto const r = static_cast<std::size_t>(rank);
    auto const& list = edges(rank, static_cast<int>(at_[r]));
    bool const may = all_happened(list, inside_[r] ? schedule::Tie::ends : schedule::Tie::needs);
    Machine next = machine_;
    bool const went = next.go(rank), begun = went || next.state() != machine_.state();
    if (may != (inside_[r] ? went : begun))
      throw Error{Outcome::wrong_result, may ? "begins too early by the graph" : "waits too long by the graph"};
    if (!may) return false;
    machine_ = std::move(next);
    if (!inside_[r])
      for (std::size_t i = at_[r]; i < std::max(machine_.place(rank), at_[r] + 1); ++i)
        give(rank, edges(rank, static_cast<int>(i)));
    inside_[r] = !went;
    if (went && !all_happened(list, schedule::Tie::ends))
      throw Error{Outcome::wrong_result, "ends too late by the graph"};
    at_[r] = machine_.place(rank);
    return true;
  }

  schedule::Program const& program_;
  LooseGraph const& graph_;
  Machine machine_;
  std::vector<int> given_;                                    ///< by event
  std::vector<bool> copied_;                                  ///< by event
  std::vector<std::deque<std::uint32_t>> copies_;             ///< by rank: those under way
  std::map<std::size_t, std::vector<std::uint32_t>> delays_;  ///< by event
  std::vector<std::size_t> at_;                               ///< by rank: its action
  std::vector<bool> inside_;                                  ///< by rank: a blocking send
};

}  // namespace

LooseGraph loosen(schedule::Graph const& graph) {
  LooseGraph out;
  for (int rank = 0; rank < graph.program().num_ranks; ++rank) {
    auto& list = out.edges.emplace_back();
    auto const actions = static_cast<std::ptrdiff_t>(graph.program().ranks[static_cast<std::size_t>(rank)].size());
    for (std::ptrdiff_t i = -1; i < actions; ++i) {
      auto const edges = graph.edges(rank, i);
      list.emplace_back(edges.begin(), edges.end());
    }
  }
  for (std::uint32_t e = 0; e < graph.num_events(); ++e) {
    out.givers.push_back(graph.givers(e));
    out.is_copy.push_back(graph.kind(e) == schedule::EventKind::copy);
    bool const follows = graph.kind(e) == schedule::EventKind::message && graph.number(e) > 0;
    out.before.push_back(follows ? static_cast<int>(e) - 1 : -1);
  }
  return out;
}

Report interpret_graph(schedule::Program const& program, schedule::Execution execution, LooseGraph const& graph,
                       unsigned seed, schedule::Pass pass) {
  try {
    return GraphRun(program, execution, graph, pass).run(seed);
  } catch (Error const& error) {
    return {error.outcome, error.why};
  }
}

}  // namespace p3d::test
