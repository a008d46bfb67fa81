// SPDX-License-Identifier: Apache-2.0
// The validator's last part: messages whose ends belong together, and progress. Every event of the graph happens once
// and nothing takes it back. So the order in which ranks run changes nothing, and each rank may run until it needs what
// has not happened yet: each edge is walked once, and once more each time what its action needs has happened.

#include "validator.hpp"

#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <limits>
#include <string>

namespace p3d::schedule {
namespace {

constexpr std::uint32_t nothing = std::numeric_limits<std::uint32_t>::max();

class ProgramRun {
public:
  ProgramRun(Program const& program, Graph const& graph)
      : program_(program),
        graph_(graph),
        lacking_(graph.givers()),
        next_(program.ranks.size(), 0),
        waits_for_(program.ranks.size(), nothing) {}

  std::vector<Violation> check() {
    match();
    if (!found_.empty()) return std::move(found_);
    for (int rank = program_.num_ranks - 1; rank >= 0; --rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      int const rank = ready_.back();
      ready_.pop_back();
      run(rank);
    }
    deadlock();
    return std::move(found_);
  }

private:
  Action const& action(int rank, std::ptrdiff_t index) const {
    return program_.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  }

  /// The two ends of every message are of one (stage, microbatch): at most the first error.
  void match() {
    for (std::size_t k = 0; k < graph_.channels().all.size(); ++k) {
      Channel const& c = graph_.channels().all[k];
      auto const [first, end] = graph_.messages(static_cast<int>(k));
      for (auto e = first; e < end; ++e) {
        auto const [sent, received] = graph_.ends(e);
        Action const &send = action(c.source, sent), &receive = action(c.destination, received);
        if (send.microbatch == receive.microbatch && peer_stage(send) == receive.stage) continue;
        found_.push_back(
            {c.destination, received,
             fmt::format("message {} from rank {} to rank {}: {} meets {} (action {} of rank {})", e - first + 1,
                         c.source, c.destination, to_string(receive), to_string(send), sent, c.source)});
        return;
      }
    }
  }

  /// Until the rank needs what has not happened yet.
  void run(int rank) {
    auto const edges = graph_.edges(rank);
    for (std::size_t& next = next_[static_cast<std::size_t>(rank)]; next < edges.size(); ++next) {
      Edge const edge = edges[next];
      int& lacking = lacking_[edge.event];
      if (edge.tie == Tie::gives) {
        if (--lacking == 0) wake(edge.event);
      } else if (lacking > 0) {
        waits_for_[static_cast<std::size_t>(rank)] = edge.event;
        return;
      }
    }
  }

  void wake(std::uint32_t event) {
    auto const look_at = [&](int rank) {
      auto& waits_for = waits_for_[static_cast<std::size_t>(rank)];
      if (waits_for != event) return;
      waits_for = nothing;
      ready_.push_back(rank);
    };
    if (graph_.kind(event) == EventKind::exchange) {
      for (int rank = 0; rank < program_.num_ranks; ++rank) look_at(rank);
    } else if (graph_.kind(event) == EventKind::message) {
      Channel const& c = graph_.channels().all[static_cast<std::size_t>(graph_.channel(event))];
      look_at(c.source);
      look_at(c.destination);
    }
  }

  /// Names the event that blocks each rank which is not at its end.
  void deadlock() {
    for (int rank = 0; rank < program_.num_ranks && found_.size() < max_violations; ++rank) {
      std::uint32_t const event = waits_for_[static_cast<std::size_t>(rank)];
      if (event == nothing) continue;
      auto const index = graph_.action_of(rank, next_[static_cast<std::size_t>(rank)]);
      auto const text = to_string(action(rank, index));
      found_.push_back({rank, static_cast<int>(index), "deadlock: " + text + waits_until(rank, event)});
    }
  }

  std::string waits_until(int rank, std::uint32_t event) const {
    if (graph_.kind(event) == EventKind::exchange)
      return fmt::format(" waits until all ranks take part in {} of microbatch {}",
                         vocabulary_exchanges[static_cast<std::size_t>(graph_.exchange(event))],
                         graph_.microbatch(event));
    Channel const& c = graph_.channels().all[static_cast<std::size_t>(graph_.channel(event))];
    bool const for_send = rank == c.destination;
    int const other = for_send ? c.source : c.destination;
    bool const at_end = waits_for_[static_cast<std::size_t>(other)] == nothing;
    return fmt::format(
        " waits until rank {} {} {} number {} with rank {}; rank {} is at {}", other, for_send ? "starts" : "posts",
        for_send ? (c.gradient ? "SEND_B" : "SEND_F") : (c.gradient ? "RECV_B" : "RECV_F"), graph_.number(event) + 1,
        rank, other,
        at_end ? "its end" : to_string(action(other, graph_.action_of(other, next_[static_cast<std::size_t>(other)]))));
  }

  Program const& program_;
  Graph const& graph_;
  std::vector<int> lacking_;              ///< givers of each event that have not given it
  std::vector<std::size_t> next_;         ///< next edge of each rank
  std::vector<std::uint32_t> waits_for_;  ///< event that each rank waits for
  std::vector<int> ready_;                ///< ranks
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> check_progress(Program const& program, Execution execution, Pass pass) {
  return ProgramRun(program, build_graph(program, execution, pass)).check();
}

}  // namespace p3d::schedule
