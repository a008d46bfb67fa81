// SPDX-License-Identifier: Apache-2.0
// Times instead of the validator's counts. Every wait is for something whose time follows from what both ends have
// done, so each rank may run until it needs a time that is not known yet, and the order in which ranks run changes
// nothing.

#include <p3d/plan/simulator.hpp>

#include <p3d/base/error.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

namespace p3d::plan {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Messages of one kind from one rank to another, in order.
struct TimedChannel {
  std::vector<double> ahead;    ///< times of posting of the side that is ahead, from message `done.size()` on
  std::size_t ahead_begin = 0;  ///< the part of `ahead` before it is used up
  bool sends_ahead = false;
  std::vector<double> done;  ///< arrival of every message whose two ends are there
  int sent = 0, received = 0;
  int waiting = -1;        ///< the rank that needs an arrival that is not known, -1: none
  int waiting_other = -1;  ///< both ends can
};

/// Which messages of its channels belong to the microbatch in a slot.
struct SlotMessages {
  int activation_in = -1, activation_out = -1, gradient_in = -1, gradient_out = -1;
  double stored = 0, loaded = 0;  ///< when its OFFLOAD_F and RELOAD_F are done
  double gradient_stored = 0;     ///< and an OFFLOAD_F with gradients
};

class SimulatedRun {
public:
  SimulatedRun(Program const& program, PipelineCosts const& costs, schedule::Execution execution, bool record)
      : program_(program),
        costs_(costs),
        execution_(execution),
        record_(record),
        clock_(program.ranks.size(), 0.0),
        next_(program.ranks.size(), 0),
        started_(program.ranks.size(), 0),
        live_(program.ranks.size(), 0),
        swap_free_(program.ranks.size(), 0.0),
        seen_(program.ranks.size(), 0) {
    auto const stages = at(program.num_stages);
    activation_out_.assign(stages, -1);
    gradient_out_.assign(stages, -1);
    std::map<std::pair<int, int>, int> known;
    auto const channel = [&](int from, int to, bool gradient) {
      auto const [place, added] = known.try_emplace(
          {2 * rank_of(program, from) + (gradient ? 1 : 0), rank_of(program, to)}, static_cast<int>(channels_.size()));
      if (added) channels_.emplace_back();
      return place->second;
    };
    outgoing_.resize(program.ranks.size());
    for (int s = 0; s < program.num_stages; ++s) {
      if (output_is_remote(program, s)) activation_out_[at(s)] = channel(s, s + 1, false);
      if (input_is_remote(program, s)) gradient_out_[at(s)] = channel(s, s - 1, true);
      for (int c : {activation_out_[at(s)], gradient_out_[at(s)]})
        if (c >= 0) outgoing_[at(rank_of(program, s))].push_back(c);
      slots_.emplace_back(at(program.num_slots[at(s)]));
    }
    for (int r = 0; r < program.num_ranks; ++r) gradients_.push_back(schedule::moves_gradients(program, r));
    if (program.divides_vocabulary)
      for (auto& exchange : exchanges_) exchange.resize(at(program.num_microbatches));
    transfer_ = costs.latency + (costs.message_bytes > 0 ? costs.message_bytes / costs.bandwidth : 0.0);
  }

  Simulation run() {
    result_.ranks.resize(program_.ranks.size());
    for (int rank = program_.num_ranks - 1; rank >= 0; --rank) ready_.push_back(rank);
    ask_for_broadcasts();
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
  /// The arrival of a message, or nothing known yet: then the rank sleeps.
  bool arrived(int rank, int channel, int number, double& time) {
    if (number < 0) return true;
    TimedChannel& c = channels_[at(channel)];
    if (at(number) < c.done.size()) {
      time = std::max(time, c.done[at(number)]);
      return true;
    }
    (c.waiting < 0 || c.waiting == rank ? c.waiting : c.waiting_other) = rank;
    return false;
  }

  /// A send is complete when it has arrived (rendezvous) or at once.
  bool send_complete(int rank, int channel, int number, double& time) {
    return !execution_.rendezvous || arrived(rank, channel, number, time);
  }

  void post(int channel, bool sends, double time) {
    TimedChannel& c = channels_[at(channel)];
    int& mine = sends ? c.sent : c.received;
    int const other = sends ? c.received : c.sent;
    if (mine++ < other) {
      double const theirs = c.ahead[c.ahead_begin++];
      if (c.ahead_begin == c.ahead.size()) {
        c.ahead.clear();
        c.ahead_begin = 0;
      }
      double const sent = sends ? time : theirs;
      double const begin = execution_.rendezvous ? std::max(time, theirs) : sent;
      c.done.push_back((c.done.empty() ? begin : std::max(begin, c.done.back())) + transfer_);
      for (int* sleeper : {&c.waiting, &c.waiting_other})
        if (*sleeper >= 0) {
          ready_.push_back(*sleeper);
          *sleeper = -1;
        }
    } else {
      c.ahead.push_back(time);
    }
  }

  void record(int rank, Action const& a, double start, double end) {
    if (record_) result_.timeline.events.push_back({rank, a, start, end});
  }

  bool execute(int rank, Action const& a) {
    if (a.op == Op::optimizer_step) return step(rank, a);
    if (schedule::is_vocabulary(a.op)) return vocabulary(rank, a);
    double& clock = clock_[at(rank)];
    if (!has_microbatch(a.op)) {
      spend(rank, a, stage_action_cost(a), clock, result_.ranks[at(rank)].other);
      return true;
    }
    SlotMessages& slot = slots_[at(a.stage)][at(a.slot)];
    double time = clock;
    bool const takes = a.op == Op::recv_activation || (a.op == Op::forward && !input_is_remote(program_, a.stage));
    if (takes) {
      if (!send_complete(rank, activation_out_[at(a.stage)], slot.activation_out, time)) return false;
      if (!send_complete(rank, gradient_out_[at(a.stage)], slot.gradient_out, time)) return false;
      double const stored = slot.stored;
      slot = {};
      slot.stored = stored;
      if (a.op == Op::forward) time = std::max(time, stored);
    }
    if (moves_activations(a.op)) return move(rank, a, slot, time);
    if (is_message(a.op)) {
      if (!message(rank, a, slot, time)) return false;
    } else {
      if (!compute(rank, a, slot, time)) return false;
    }
    return true;
  }

  /// An exchange between all ranks of a microbatch.
  struct Exchanged {
    int ranks = 0;
    double time = 0;  ///< when the last of them took part; then, when it is over
    std::vector<int> waiting;
  };
  using Exchange = schedule::VocabularyExchange;
  Exchanged& exchanged(Exchange e, int microbatch) { return exchanges_[static_cast<std::size_t>(e)][at(microbatch)]; }

  void join(Exchange e, int microbatch, double time) {
    if (microbatch >= program_.num_microbatches) return;
    auto& x = exchanged(e, microbatch);
    x.time = std::max(x.time, time);
    if (++x.ranks < program_.num_ranks) return;
    auto const& cost = costs_.vocabulary;
    x.time += e == Exchange::parts                                  ? cost.gather
              : e == Exchange::sum || e == Exchange::input_gradient ? cost.sum
                                                                    : cost.broadcast;
    ready_.insert(ready_.end(), x.waiting.begin(), x.waiting.end());
    x.waiting.clear();
  }
  /// `time` becomes its end, if that is known.
  bool over(int rank, Exchange e, int microbatch, double& time) {
    if (microbatch < 0) return true;
    auto& x = exchanged(e, microbatch);
    if (x.ranks < program_.num_ranks) {
      x.waiting.push_back(rank);
      return false;
    }
    time = std::max(time, x.time);
    return true;
  }
  void ask_for_broadcasts() {
    if (!program_.divides_vocabulary) return;
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      for (int m = 0; m < schedule::vocabulary_slots.head && !gives_output(rank); ++m) join(Exchange::output, m, 0);
      for (int m = 0; m < schedule::vocabulary_slots.gradient && rank != rank_of(program_, 0); ++m)
        join(Exchange::gradient, m, 0);
    }
  }
  bool gives_output(int rank) const { return rank == rank_of(program_, program_.num_stages - 1); }

  bool vocabulary(int rank, Action const& a) {
    int const m = a.microbatch;
    double time = clock_[at(rank)];
    auto const& cost = costs_.vocabulary_microbatches.empty()
                           ? costs_.vocabulary
                           : costs_.vocabulary_microbatches[at(rank) * at(program_.num_microbatches) + at(m)];
    RankResult& r = result_.ranks[at(rank)];
    auto const work = [&](double seconds) {
      if (!seen_[at(rank)]) r.begin = time;
      seen_[at(rank)] = 1;
      spend(rank, a, seconds, time, r.busy);
      r.end = clock_[at(rank)];
      return r.end;
    };
    switch (a.op) {
      case Op::embed_forward:
        if (!over(rank, Exchange::sum, m - schedule::vocabulary_slots.embed, time)) return false;
        join(Exchange::sum, m, work(cost.embed_forward));
        break;
      case Op::head_forward:
        if (!over(rank, Exchange::output, m, time)) return false;
        join(Exchange::parts, m, work(cost.head_forward));
        break;
      case Op::head_backward: {
        if (!over(rank, Exchange::parts, m, time) ||
            !over(rank, Exchange::input_gradient, m - schedule::vocabulary_slots.head, time))
          return false;
        double const end = work(cost.head_backward);
        join(Exchange::input_gradient, m, end);
        if (!gives_output(rank)) join(Exchange::output, m + schedule::vocabulary_slots.head, end);
        break;
      }
      default: {
        if (!over(rank, Exchange::gradient, m, time)) return false;
        double const end = work(cost.embed_backward);
        if (rank != rank_of(program_, 0)) join(Exchange::gradient, m + schedule::vocabulary_slots.gradient, end);
      }
    }
    return true;
  }
  /// `time` becomes the time when what an action of a stage takes from all ranks is there.
  bool takes_over(int rank, Action const& a, double& time) {
    if (!program_.divides_vocabulary) return true;
    if (a.op == Op::forward && a.stage == 0) return over(rank, Exchange::sum, a.microbatch, time);
    bool const last = a.stage + 1 == program_.num_stages;
    return !makes_input_gradient(a.op) || !last || over(rank, Exchange::input_gradient, a.microbatch, time);
  }
  void hands_over(int rank, Action const& a) {
    if (!program_.divides_vocabulary) return;
    if (a.op == Op::forward && a.stage + 1 == program_.num_stages)
      join(Exchange::output, a.microbatch, clock_[at(rank)]);
    if (makes_input_gradient(a.op) && a.stage == 0) join(Exchange::gradient, a.microbatch, clock_[at(rank)]);
  }

  /// A rank's copies follow each other, while it goes on.
  bool move(int rank, Action const& a, SlotMessages& slot, double time) {
    bool const reloads = a.op == Op::reload_activations;
    if (reloads && gradients_[at(rank)][next_[at(rank)]] &&
        !(send_complete(rank, activation_out_[at(a.stage)], slot.activation_out, time) &&
          send_complete(rank, gradient_out_[at(a.stage)], slot.gradient_out, time)))
      return false;
    clock_[at(rank)] = time;
    double& free = swap_free_[at(rank)];
    free = std::max(free, time) + (costs_.swap.empty() ? 0.0 : costs_.swap[at(a.stage)]);
    (reloads ? slot.loaded : slot.stored) = free;
    if (!reloads && gradients_[at(rank)][next_[at(rank)]]) slot.gradient_stored = free;
    if (reloads) slot.activation_in = slot.gradient_in = -1;
    return true;
  }

  bool message(int rank, Action const& a, SlotMessages& slot, double time) {
    bool const gradient = a.op == Op::send_gradient || a.op == Op::recv_gradient;
    int const sender = is_send(a.op) ? a.stage : schedule::peer_stage(a);
    int const channel = (gradient ? gradient_out_ : activation_out_)[at(sender)];
    TimedChannel const& c = channels_[at(channel)];
    if (a.op == Op::recv_gradient && !send_complete(rank, gradient_out_[at(a.stage)], slot.gradient_out, time))
      return false;
    if (is_recv(a.op)) {
      own_time(rank, a, costs_.receive, time);
      (gradient ? slot.gradient_in : slot.activation_in) = c.received;
      // It is put off while the slot is written out.
      post(channel, false, std::max(time, gradient ? slot.gradient_stored : slot.stored));
    } else {
      auto& started = started_[at(rank)];
      int& number = gradient ? slot.gradient_out : slot.activation_out;
      if (!started) {
        if (!send_complete(rank, channel, c.sent - std::max(1, execution_.sends_in_flight), time)) return false;
        number = c.sent;
        own_time(rank, a, costs_.send, time);
        post(channel, true, time);
        result_.ranks[at(rank)].bytes_sent += costs_.message_bytes;
      }
      if (execution_.sends_in_flight == 0) {
        clock_[at(rank)] = time;
        started = 1;
        if (!send_complete(rank, channel, number, time)) return false;
        started = 0;
      }
    }
    clock_[at(rank)] = time;
    return true;
  }

  double stage_action_cost(Action const& a) const {
    auto const of = [&](std::vector<double> const& by_stage) { return by_stage.empty() ? 0.0 : by_stage[at(a.stage)]; };
    switch (a.op) {
      case Op::reduce_gradients: return of(costs_.reduce);
      case Op::gather_weights:
      case Op::reduce_scatter_gradients: return of(costs_.gather);
      case Op::offload_weights:
      case Op::reload_weights: return of(costs_.offload);
      case Op::stage_step: return costs_.step;
      default: return 0.0;
    }
  }

  /// What a rank spends on a message itself.
  void own_time(int rank, Action const& a, double cost, double& time) {
    if (cost > 0) record(rank, a, time, time + cost);
    time += cost;
    result_.ranks[at(rank)].other += cost;
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
      default: return cost.weight;
    }
  }
  double wait_inside(Action const& a) const {
    auto const& cost = stage_cost(a);
    return a.op == Op::forward ? cost.forward_wait : makes_input_gradient(a.op) ? cost.input_wait : 0.0;
  }

  /// `time` becomes the time when all that a compute action waits for is there; or nothing known yet.
  bool inputs_there(int rank, Action const& a, SlotMessages const& slot, double& time) {
    if (a.op == Op::forward && input_is_remote(program_, a.stage) &&
        !arrived(rank, activation_out_[at(a.stage - 1)], slot.activation_in, time))
      return false;
    if (makes_input_gradient(a.op) && output_is_remote(program_, a.stage) &&
        !arrived(rank, gradient_out_[at(a.stage + 1)], slot.gradient_in, time))
      return false;
    if (makes_input_gradient(a.op) && !send_complete(rank, gradient_out_[at(a.stage)], slot.gradient_out, time))
      return false;
    if (a.op == Op::backward_input && !send_complete(rank, activation_out_[at(a.stage)], slot.activation_out, time))
      return false;
    time = std::max(time, slot.loaded);
    return takes_over(rank, a, time);
  }

  bool compute(int rank, Action const& a, SlotMessages const& slot, double time) {
    if (!inputs_there(rank, a, slot, time)) return false;
    auto const& actions = program_.ranks[at(rank)];
    auto const* other = execution_.pairs ? schedule::partner(actions, next_[at(rank)]) : nullptr;
    if (other && a.op == Op::forward && !inputs_there(rank, *other, slots_[at(other->stage)][at(other->slot)], time))
      return false;
    RankResult& r = result_.ranks[at(rank)];
    if (!seen_[at(rank)]) r.begin = time;
    seen_[at(rank)] = 1;
    if (a.op == Op::forward) r.peak_live = std::max(r.peak_live, ++live_[at(rank)]);
    if (makes_weight_gradient(a.op)) --live_[at(rank)];
    double const hidden = other ? std::min(wait_inside(a), cost_of(*other) - wait_inside(*other)) : 0.0;
    spend(rank, a, cost_of(a) - hidden, time, r.busy);
    r.end = clock_[at(rank)];
    hands_over(rank, a);
    return true;
  }

  bool step(int rank, Action const& a) {
    double time = clock_[at(rank)];
    for (int channel : outgoing_[at(rank)])
      if (!send_complete(rank, channel, channels_[at(channel)].sent - 1, time)) return false;
    int const last = program_.num_microbatches - 1;
    if (program_.divides_vocabulary &&
        !(over(rank, Exchange::sum, last, time) && over(rank, Exchange::input_gradient, last, time)))
      return false;
    spend(rank, a, costs_.step, time, result_.ranks[at(rank)].other);
    return true;
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
  std::vector<double> clock_;                 ///< by rank
  std::vector<std::size_t> next_;             ///< by rank: the action it is at
  std::vector<char> started_;                 ///< by rank: its blocking send is under way
  std::vector<int> live_;                     ///< by rank
  std::vector<double> swap_free_;             ///< by rank: when its copies of activations are done
  std::vector<char> seen_;                    ///< by rank: it has computed
  std::vector<std::vector<bool>> gradients_;  ///< by rank: schedule::moves_gradients
  std::vector<TimedChannel> channels_;
  std::vector<int> activation_out_, gradient_out_;  ///< by stage: the channel, -1: none
  std::vector<std::vector<int>> outgoing_;          ///< by rank: channels
  std::vector<std::vector<SlotMessages>> slots_;    ///< by stage
  std::array<std::vector<Exchanged>, schedule::vocabulary_exchanges.size()> exchanges_;  ///< by kind and microbatch
  std::vector<int> ready_;
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
