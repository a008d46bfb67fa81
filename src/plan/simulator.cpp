// SPDX-License-Identifier: Apache-2.0
// The longest path through the graph of a program (schedule/graph.hpp): an event happens when its givers and, for a
// message, the one before it on its channel are through; an action begins when its rank is free and what it needs has
// happened. There is one clock for each rank, one for its copies and one for each channel. Each rank may run until it
// needs a time that is not known yet, and the order in which ranks run changes nothing. An example: rank 1 needs a
// message of rank 0 that is not sent yet, so it sleeps; rank 0 runs on, gives the message at time 1, and rank 1 wakes
// and begins its forward then.

#include <p3d/plan/simulator.hpp>

#include <p3d/base/error.hpp>
#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/weights.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace p3d::plan {
namespace {

using schedule::Action;
using schedule::Edge;
using schedule::EventKind;
using schedule::Op;
using schedule::Program;
using schedule::Tie;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
constexpr std::uint32_t nothing = std::numeric_limits<std::uint32_t>::max();

/// One walk through a program, all ranks together.
class SimulatedRun {
public:
  SimulatedRun(Program const& program, PipelineCosts const& costs, schedule::Execution execution, bool record)
      : program_(program),
        costs_(costs),
        execution_(execution),
        record_(record),
        graph_(schedule::build_graph(program, execution)),
        lacking_(graph_.givers()),
        time_(graph_.num_events(), 0.0),
        channel_free_(graph_.channels().all.size(), 0.0),
        clock_(program.ranks.size(), 0.0),
        copies_free_(program.ranks.size(), 0.0),
        next_(program.ranks.size(), 0),
        inside_(program.ranks.size(), 0),
        waits_for_(program.ranks.size(), nothing),
        live_(program.ranks.size(), 0),
        seen_(program.ranks.size(), 0) {
    transfer_ = costs.latency + (costs.message_bytes > 0 ? costs.message_bytes / costs.bandwidth : 0.0);
  }

  Simulation run() {
    result_.ranks.resize(program_.ranks.size());
    for (int rank = 0; rank < program_.num_ranks; ++rank)
      for (Edge const& e : graph_.edges(rank, -1)) give_exchange(e.event, 0.0);
    for (int rank = program_.num_ranks - 1; rank >= 0; --rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      int const rank = ready_.back();
      ready_.pop_back();
      auto const& actions = program_.ranks[at(rank)];
      while (next_[at(rank)] < actions.size() && execute(rank, actions[next_[at(rank)]])) ++next_[at(rank)];
    }
    for (std::size_t r = 0; r < next_.size(); ++r)
      P3D_REQUIRE(next_[r] == program_.ranks[r].size(),
                  "a program that is simulated runs to its end (validate it first)");
    finish();
    return std::move(result_);
  }

private:
  /// True when the event has happened; `time` then becomes that of the event if it is earlier. False: the rank sleeps
  /// until the event wakes it.
  bool happened(int rank, std::uint32_t event, double& time) {
    if (lacking_[event] > 0) {
      waits_for_[at(rank)] = event;
      return false;
    }
    time = std::max(time, time_[event]);
    return true;
  }
  void wake(int rank, std::uint32_t event) {
    if (waits_for_[at(rank)] != event) return;
    waits_for_[at(rank)] = nothing;
    ready_.push_back(rank);
  }

  void give_exchange(std::uint32_t event, double time) {
    time_[event] = std::max(time_[event], time);
    if (--lacking_[event] > 0) return;
    using Exchange = schedule::VocabularyExchange;
    auto const kind = graph_.exchange(event);
    auto const& cost = costs_.vocabulary;
    time_[event] += kind == Exchange::parts                                     ? cost.gather
                    : kind == Exchange::sum || kind == Exchange::input_gradient ? cost.sum
                                                                                : cost.broadcast;
    for (int rank = 0; rank < program_.num_ranks; ++rank) wake(rank, event);
  }
  /// Posts one end of a message. The second of both ends gives the event its time: the message begins to arrive when it
  /// is sent (and, with rendezvous, asked for) and the one before it on its channel has arrived.
  void give_message(Action const& a, std::uint32_t event, double time) {
    if (--lacking_[event] > 0) {
      time_[event] = time;
      return;
    }
    double const other = time_[event], sent = is_send(a.op) ? time : other;
    double& free = channel_free_[at(graph_.channels().of(a))];
    free = std::max(execution_.rendezvous ? std::max(time, other) : sent, free) + transfer_;
    time_[event] = free;
    wake(rank_of(program_, schedule::peer_stage(a)), event);
  }
  /// Starts a copy of activations. A rank's copies follow each other, while the rank goes on.
  void give_copy(int rank, Action const& a, std::uint32_t event, double time) {
    double& free = copies_free_[at(rank)];
    free = std::max(free, time) + (costs_.swap.empty() ? 0.0 : costs_.swap[at(a.stage)]);
    time_[event] = free;
    lacking_[event] = 0;
  }

  void record(int rank, Action const& a, double start, double end) {
    if (record_) result_.timeline.events.push_back({rank, a, start, end});
  }

  /// Executes an action as far as it can: needs first, then its work, what it gives, and the events that it ends with.
  /// False: the rank waits inside of it, and is called again.
  bool execute(int rank, Action const& a) {
    auto const edges = graph_.edges(rank, static_cast<std::ptrdiff_t>(next_[at(rank)]));
    auto edge = edges.begin();
    double time = clock_[at(rank)], given = 0.0;  // a receive is put off until `given`
    for (; edge != edges.end() && edge->tie == Tie::needs; ++edge)
      if (!happened(rank, edge->event, time)) return false;
    for (; edge != edges.end() && edge->tie == Tie::delays; ++edge)
      if (!happened(rank, edge->event, given)) return false;
    if (!inside_[at(rank)]) {
      switch (schedule::lane_of(a.op)) {
        case schedule::Lane::compute: compute(rank, a, time); break;
        case schedule::Lane::link: message(rank, a, time); break;
        case schedule::Lane::copies: clock_[at(rank)] = time; break;
      }
    }
    given = std::max(given, clock_[at(rank)]);
    for (; edge != edges.end() && edge->tie == Tie::gives; ++edge) {
      if (inside_[at(rank)]) continue;
      switch (graph_.kind(edge->event)) {
        case EventKind::message: give_message(a, edge->event, given); break;
        case EventKind::exchange: give_exchange(edge->event, given); break;
        case EventKind::copy: give_copy(rank, a, edge->event, given); break;
      }
    }
    for (; edge != edges.end(); ++edge) {
      inside_[at(rank)] = 1;
      if (!happened(rank, edge->event, clock_[at(rank)])) return false;
    }
    inside_[at(rank)] = 0;
    return true;
  }

  /// Adds the rank's own time for posting a send or a receive.
  void message(int rank, Action const& a, double time) {
    double const cost = is_send(a.op) ? costs_.send : costs_.receive;
    if (cost > 0) record(rank, a, time, time + cost);
    clock_[at(rank)] = time + cost;
    result_.ranks[at(rank)].other += cost;
    if (is_send(a.op)) result_.ranks[at(rank)].bytes_sent += costs_.message_bytes;
  }

  /// Adds the time of an action that computes, or that updates, reduces or fetches.
  void compute(int rank, Action const& a, double time) {
    RankResult& r = result_.ranks[at(rank)];
    if (!schedule::computes(a.op)) return spend(rank, a, other_cost(a), time, r.other);
    if (!seen_[at(rank)]) r.begin = time;
    seen_[at(rank)] = 1;
    double cost = 0.0;
    if (schedule::is_vocabulary(a.op)) {
      cost = vocabulary_cost(rank, a);
    } else {
      if (a.op == Op::forward) r.peak_live = std::max(r.peak_live, ++live_[at(rank)]);
      if (makes_weight_gradient(a.op)) --live_[at(rank)];
      auto const* other = execution_.pairs ? schedule::partner(program_.ranks[at(rank)], next_[at(rank)]) : nullptr;
      double const hidden = other ? std::min(wait_inside(a), cost_of(*other) - wait_inside(*other)) : 0.0;
      cost = cost_of(a) - hidden;
    }
    spend(rank, a, cost, time, r.busy);
    r.end = clock_[at(rank)];
  }

  double vocabulary_cost(int rank, Action const& a) const {
    auto const& cost =
        costs_.vocabulary_microbatches.empty()
            ? costs_.vocabulary
            : costs_.vocabulary_microbatches[at(rank) * at(program_.num_microbatches) + at(a.microbatch)];
    switch (a.op) {
      case Op::embed_forward: return cost.embed_forward;
      case Op::head_forward: return cost.head_forward;
      case Op::head_backward: return cost.head_backward;
      case Op::embed_backward: return cost.embed_backward;
      default: P3D_REQUIRE(false, "only E, S, T and G belong to the vocabulary");
    }
  }

  /// Seconds of an action that belongs to no microbatch.
  double other_cost(Action const& a) const {
    auto const of = [&](std::vector<double> const& by_stage) { return by_stage.empty() ? 0.0 : by_stage[at(a.stage)]; };
    switch (a.op) {
      case Op::reduce_gradients: return of(costs_.reduce);
      case Op::gather_weights:
      case Op::reduce_scatter_gradients: return of(costs_.gather);
      case Op::offload_weights:
      case Op::reload_weights: return of(costs_.offload);
      case Op::stage_step:
      case Op::optimizer_step: return costs_.step;
      default: return 0.0;
    }
  }

  StageCost const& stage_cost(Action const& a) const {
    return costs_.microbatches.empty()
               ? costs_.stages[at(a.stage)]
               : costs_.microbatches[at(a.stage) * at(program_.num_microbatches) + at(a.microbatch)];
  }
  double cost_of(Action const& a) const {
    auto const& cost = stage_cost(a);
    double const again = a.slot < costs_.slots_kept ? 0.0 : cost.recompute;
    switch (a.op) {
      case Op::forward: return cost.forward;
      case Op::backward: return cost.whole() + again;
      case Op::backward_input: return cost.input + again;
      case Op::backward_weight: return cost.weight;
      default: P3D_REQUIRE(false, "only F, B, I and W belong to a stage and a microbatch");
    }
  }
  double wait_inside(Action const& a) const {
    auto const& cost = stage_cost(a);
    return a.op == Op::forward ? cost.forward_wait : makes_input_gradient(a.op) ? cost.input_wait : 0.0;
  }

  void spend(int rank, Action const& a, double cost, double start, double& account) {
    clock_[at(rank)] = start + cost;
    account += cost;
    if (schedule::computes(a.op) || cost > 0) record(rank, a, start, start + cost);
  }

  void finish() {
    for (int s = 0; s < program_.num_stages; ++s) {
      RankResult& r = result_.ranks[at(rank_of(program_, s))];
      int const slots = program_.num_slots[at(s)];
      r.slots += slots;
      if (!costs_.slot_bytes.empty()) r.peak_bytes += slots * costs_.slot_bytes[at(s)];
    }
    if (!costs_.weight_bytes.empty()) {
      auto const peaks = schedule::peak_weight_bytes(program_, costs_.weight_bytes);
      for (std::size_t r = 0; r < peaks.size(); ++r) result_.ranks[r].peak_weight_bytes = peaks[r];
    }
    for (std::size_t r = 0; r < clock_.size(); ++r) {
      RankResult const& rank = result_.ranks[r];
      result_.makespan = std::max(result_.makespan, rank.end);
      result_.longest_span = std::max(result_.longest_span, rank.end - rank.begin);
      result_.step_time = std::max(result_.step_time, clock_[r]);
    }
    result_.timeline.num_ranks = program_.num_ranks;
    result_.timeline.stages_per_rank = (program_.num_stages + program_.num_ranks - 1) / program_.num_ranks;
  }

  Program const& program_;
  PipelineCosts const& costs_;
  schedule::Execution execution_;
  bool record_;
  double transfer_ = 0;
  schedule::Graph const graph_;
  std::vector<int> lacking_;  ///< for each event: givers that have not given it yet
  std::vector<double> time_;  ///< for each event: when it happened; before that, when its last giver so far gave it
  std::vector<double> channel_free_;      ///< for each channel: when its last message has arrived
  std::vector<double> clock_;             ///< for each rank: the end of what it has done
  std::vector<double> copies_free_;       ///< for each rank: when its copies of activations are done
  std::vector<std::size_t> next_;         ///< for each rank: index of its current action
  std::vector<char> inside_;              ///< for each rank: 1 when the current action has given all
  std::vector<std::uint32_t> waits_for_;  ///< for each rank: the event that it sleeps for, or `nothing`
  std::vector<int> live_;                 ///< for each rank: microbatches between F and their backward
  std::vector<char> seen_;                ///< for each rank: 1 when it has computed something
  std::vector<int> ready_;                ///< ranks that can go on
  Simulation result_;
};

}  // namespace

double Simulation::busy() const {
  return std::accumulate(ranks.begin(), ranks.end(), 0.0, [](double sum, auto const& r) { return sum + r.busy; });
}
double Simulation::bubble() const {
  return makespan > 0 ? 1 - busy() / (static_cast<double>(ranks.size()) * makespan) : 0.0;
}
double Simulation::span_bubble() const {
  double worst = 0;
  for (auto const& r : ranks)
    if (r.end > r.begin) worst = std::max(worst, 1 - r.busy / (r.end - r.begin));
  return worst;
}
int Simulation::peak_live() const {
  int worst = 0;
  for (auto const& r : ranks) worst = std::max(worst, r.peak_live);
  return worst;
}
double Simulation::peak_bytes() const {
  double worst = 0;
  for (auto const& r : ranks) worst = std::max(worst, r.peak_bytes);
  return worst;
}
double Simulation::bytes_sent() const {
  return std::accumulate(ranks.begin(), ranks.end(), 0.0, [](double sum, auto const& r) { return sum + r.bytes_sent; });
}

Simulation simulate(Program const& program, PipelineCosts const& costs, schedule::Execution execution, bool record) {
  P3D_REQUIRE(costs.stages.size() == at(program.num_stages), "every stage has its costs");
  P3D_REQUIRE(program.num_slots.size() == at(program.num_stages), "a program that is simulated is complete");
  P3D_REQUIRE(costs.slot_bytes.empty() || costs.slot_bytes.size() == costs.stages.size(),
              "every stage has its bytes, or none");
  P3D_REQUIRE(
      costs.microbatches.empty() || costs.microbatches.size() == costs.stages.size() * at(program.num_microbatches),
      "every microbatch of every stage has its costs, or none");
  for (auto const* by_stage : {&costs.reduce, &costs.gather, &costs.offload, &costs.weight_bytes, &costs.swap})
    P3D_REQUIRE(by_stage->empty() || by_stage->size() == costs.stages.size(),
                "every stage has its reduction, gather, offload, bytes of weights and swap, or none");
  return SimulatedRun(program, costs, execution, record).run();
}

}  // namespace p3d::plan
