// SPDX-License-Identifier: Apache-2.0
#include <p3d/schedule/opening.hpp>

#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/query.hpp>

#include <limits>

namespace p3d::schedule {

namespace {

constexpr bool may_stand_in_opening(Op op) {
  return op == Op::forward || op == Op::embed_forward || is_message(op) || op == Op::gather_weights ||
         op == Op::release_weights;
}

/// The largest prefixes that are closed in the graph: at first all before the first that may not stand there, then
/// fewer until every event that is needed there happens there.
class Openings {
public:
  explicit Openings(Program const& program)
      : graph_(build_graph(program, {true, std::numeric_limits<int>::max()})), given_(graph_.num_events(), 0) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& actions = program.ranks[r];
      std::size_t n = 0;
      for (; n < actions.size() && may_stand_in_opening(actions[n].op); ++n) count(r, n, 1);
      ends_.push_back(n);
    }
    while (cut()) {
    }
  }

  std::vector<std::size_t> const& ends() const { return ends_; }
  /// Whether one end of the message of an action that stands in no opening stands in one.
  bool has_other_end(std::size_t rank, std::size_t action) const {
    for (Edge const& e : edges(rank, action))
      if (e.tie == Tie::gives) return given_[e.event] > 0;
    return false;
  }

private:
  std::span<Edge const> edges(std::size_t rank, std::size_t action) const {
    return graph_.edges(static_cast<int>(rank), static_cast<std::ptrdiff_t>(action));
  }
  void count(std::size_t rank, std::size_t action, int step) {
    for (Edge const& e : edges(rank, action)) given_[e.event] += e.tie == Tie::gives ? step : 0;
  }
  /// All that the action needs happens, and every exchange in which it takes part. A message that it posts may wait.
  /// Broadcasts, for which ranks ask when the program begins, are behind all openings.
  bool is_closed(std::size_t rank, std::size_t action) const {
    for (Edge const& e : edges(rank, action)) {
      bool const gives = e.tie == Tie::gives, message = graph_.kind(e.event) == EventKind::message;
      if (gives && !message && graph_.exchange(e.event) == VocabularyExchange::output) return false;
      if (!(gives && message) && given_[e.event] < graph_.givers(e.event)) return false;
    }
    return true;
  }
  /// One round; false: nothing changed.
  bool cut() {
    bool changed = false;
    for (std::size_t r = 0; r < ends_.size(); ++r)
      for (std::size_t i = 0; i < ends_[r]; ++i) {
        if (is_closed(r, i)) continue;
        for (std::size_t k = i; k < ends_[r]; ++k) count(r, k, -1);
        ends_[r] = i;
        changed = true;
      }
    return changed;
  }

  Graph graph_;
  std::vector<int> given_;  ///< number of actions in openings that give each event
  std::vector<std::size_t> ends_;
};

}  // namespace

Opening opening(Program const& program) {
  Openings const openings(program);
  Opening out{openings.ends(), std::vector<std::vector<Action>>(program.ranks.size())};
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (std::size_t i = openings.ends()[r]; i < program.ranks[r].size(); ++i) {
      Action const& a = program.ranks[r][i];
      if (is_message(a.op) && openings.has_other_end(r, i)) out.unmatched[r].push_back(a);
    }
  return out;
}

}  // namespace p3d::schedule
