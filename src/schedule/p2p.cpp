// SPDX-License-Identifier: Apache-2.0
// Pairs of messages, and the rounds of a ring. The rounds come from one walk along the graph of needs (graph.hpp), rank
// by rank, each as far as it gets: the clock of a rank counts its steps, and a message gets its round when both of its
// ends have been reached. Example: on the second of two ranks with 1F1B and 2 microbatches "1F0" begins at step 1, when
// the round of 0F0 is there, and what 1B0 leaves is sent in the round of step 3.

#include <p3d/schedule/p2p.hpp>

#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/query.hpp>

#include "channels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

namespace p3d::schedule {

std::vector<int> same_call(Program const& program, std::vector<Action> const& actions) {
  std::vector<int> out(actions.size(), -1);
  auto const peer = [&](Action const& a) { return rank_of(program, peer_stage(a)); };
  // The first message behind i, without an action of another kind between, that starts with it.
  auto const find = [&](std::size_t i) -> std::size_t {
    Action const& first = actions[i];
    for (std::size_t j = i + 1; j < actions.size() && is_message(actions[j].op); ++j) {
      Action const& second = actions[j];
      bool const same_slot = first.stage == second.stage && first.slot == second.slot;
      if (out[j] < 0 && is_send(first.op) != is_send(second.op) && peer(first) == peer(second)) {
        Action const &send = is_send(first.op) ? first : second, &receive = is_send(first.op) ? second : first;
        bool const writes = same_slot && (receive.op == Op::recv_activation || send.op == Op::send_gradient);
        return writes ? 0 : j;
      }
      if (same_slot) return 0;
    }
    return 0;
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!is_message(actions[i].op) || out[i] >= 0) continue;
    auto const j = find(i);
    if (j == 0) continue;
    out[i] = static_cast<int>(j);
    out[j] = static_cast<int>(i);
  }
  return out;
}

namespace {

class RoundFinder {
public:
  RoundFinder(Program const& program, Execution const& execution, Pass pass)
      : program_(program),
        pairs_(execution.pairs),
        graph_(build_graph(program, execution, pass)),
        events_(graph_.num_events()),
        places_(program.ranks.size()) {
    auto const givers = graph_.givers();
    for (std::size_t e = 0; e < events_.size(); ++e) events_[e].lacking = givers[e];
    for (std::size_t r = 0; r < places_.size(); ++r) places_[r].starts.resize(program.ranks[r].size());
  }

  std::optional<Rounds> find(std::string& why) {
    if (!require_neighbours(why)) return std::nullopt;
    for (int rank = 0; rank < program_.num_ranks; ++rank) give(rank, -1, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < program_.num_ranks; ++rank) moved = run(rank) || moved;
    }
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      auto const& p = places_[at(rank)];
      auto const& list = program_.ranks[at(rank)];
      if (p.next == list.size()) continue;
      why = fmt::format("rank {} waits in {} for a message of a later round", rank, to_string(list[p.next]));
      return std::nullopt;
    }
    return rounds();
  }

private:
  struct Event {
    int lacking = 0;  ///< givers that have not given it
    int time = 0;     ///< the round of a message, once nothing is lacking
  };
  /// How far a rank has come.
  struct Place {
    std::size_t next = 0;  ///< index of its next action
    int clock = 0;
    std::vector<int> starts;  ///< the step at which each action that is no message begins
  };

  bool require_neighbours(std::string& why) {
    int const last = program_.num_ranks - 1;
    for (Channel const& c : graph_.channels().all) {
      int const apart = std::abs(c.source - c.destination);
      if (apart == 1) continue;
      if (apart == last) {
        periodic_ = true;
        continue;
      }
      auto const& list = program_.ranks[at(c.source)];
      auto const leaves = [&](Action const& a) {
        return is_send(a.op) && rank_of(program_, peer_stage(a)) == c.destination;
      };
      auto const first = std::find_if(list.begin(), list.end(), leaves);
      if (first == list.end()) continue;  // gradients of a program without backwards
      why = fmt::format("{} of rank {}, which goes to rank {}", to_string(*first), c.source, c.destination);
      return false;
    }
    return true;
  }

  /// The step at which all that an action needs is there, at `time` at the earliest; nothing when nobody knows yet. A
  /// message that needs another one to be over comes in a later round.
  std::optional<int> begin(int rank, std::size_t index, int time) {
    Action const& a = program_.ranks[at(rank)][index];
    auto const wait = [&](std::uint32_t event) {
      Event const& e = events_[event];
      time = std::max(time, e.time + (is_message(a.op) ? 1 : 0));
      return e.lacking == 0;
    };
    for (Edge const edge : graph_.edges(rank, static_cast<std::ptrdiff_t>(index)))
      if (edge.tie == Tie::needs && graph_.kind(edge.event) != EventKind::copy && !wait(edge.event)) return {};
    return time;
  }

  void give(int rank, std::ptrdiff_t index, int time) {
    for (Edge const edge : graph_.edges(rank, index)) {
      if (edge.tie != Tie::gives) continue;
      Event& e = events_[edge.event];
      e.time = std::max(e.time, time);
      if (--e.lacking > 0 || graph_.kind(edge.event) != EventKind::message) continue;
      auto& used = used_of(graph_.channels().all[at(graph_.channel(edge.event))]);
      while (!used.insert(e.time).second) ++e.time;
    }
  }
  /// The rounds with a message from one rank to another, of either kind.
  std::set<int>& used_of(Channel const& c) { return used_[{c.source, c.destination}]; }

  /// Runs a rank until it needs what has no time yet. True when it has come further.
  bool run(int rank) {
    auto& p = places_[at(rank)];
    auto const& list = program_.ranks[at(rank)];
    auto const before = p.next;
    for (; p.next < list.size(); ++p.next) {
      auto const time = begin(rank, p.next, p.clock);
      if (!time) break;
      if (is_message(list[p.next].op)) {
        give(rank, static_cast<std::ptrdiff_t>(p.next), *time);
        continue;
      }
      p.starts[p.next] = *time;
      p.clock = *time + 1;
      give(rank, static_cast<std::ptrdiff_t>(p.next), p.clock);
      if (!pairs_ || !begins_pair(list, p.next)) continue;
      p.starts[++p.next] = *time;  // the two of a pair begin as one
      give(rank, static_cast<std::ptrdiff_t>(p.next), ++p.clock);
    }
    return p.next > before;
  }

  Rounds rounds() const {
    std::set<int> times;
    for (std::uint32_t e = 0; e < events_.size(); ++e)
      if (graph_.kind(e) == EventKind::message) times.insert(events_[e].time);
    std::vector<int> const steps(times.begin(), times.end());
    Rounds out;
    out.periodic = periodic_ && program_.num_ranks > 2;
    for (int rank = 0; rank < program_.num_ranks; ++rank) out.ranks.push_back(rounds_of(rank, steps));
    return out;
  }

  std::vector<Round> rounds_of(int rank, std::vector<int> const& steps) const {
    auto const& list = program_.ranks[at(rank)];
    auto const& starts = places_[at(rank)].starts;
    std::vector<Round> out(steps.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_message(list[i].op)) continue;
      for (Edge const edge : graph_.edges(rank, static_cast<std::ptrdiff_t>(i)))
        if (edge.tie == Tie::gives) {
          auto const step = std::lower_bound(steps.begin(), steps.end(), events_[edge.event].time);
          out[static_cast<std::size_t>(step - steps.begin())].messages.push_back(i);
        }
    }
    std::size_t from = 0, by = 0, next = 0;
    for (std::size_t r = 0; r < out.size(); ++r) {
      // A round without messages starts with the one before it.
      if (!out[r].messages.empty()) {
        from = std::max(from, out[r].messages.back() + 1);
        while (next < list.size() && (is_message(list[next].op) || starts[next] < steps[r])) ++next;
        by = next;
      }
      out[r].from = from;
      out[r].by = by;
    }
    return out;
  }

  Program const& program_;
  bool pairs_;
  Graph graph_;
  std::vector<Event> events_;
  std::vector<Place> places_;
  std::map<std::pair<int, int>, std::set<int>> used_;
  bool periodic_ = false;
};

}  // namespace

std::optional<Rounds> find_rounds(Program const& program, Execution const& execution, Pass pass, std::string& why) {
  return RoundFinder(program, execution, pass).find(why);
}

}  // namespace p3d::schedule
