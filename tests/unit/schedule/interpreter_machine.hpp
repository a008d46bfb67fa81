// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine of the interpreter: slots that hold values, messages that move them, and the waits of the definition
// (Execution in schedule.hpp, offload.hpp, vocabulary.hpp). It can be copied, so that a step can be tried.

#include "interpreter_parts.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace p3d::test {

using schedule::Action;
using schedule::Op;

// The value of a buffer is a number that says what it holds: no value is -1, and the data of a message of microbatch m
// made by stage s are distinct numbers for activation and gradient.
constexpr int none = -1;
inline int activation(int stage, int microbatch) { return 1000 * (stage + 1) + microbatch; }
inline int gradient(int stage, int microbatch) { return 100000 + 1000 * (stage + 1) + microbatch; }

struct Buffers {
  int user = none;  ///< the microbatch that took the slot
  int input = none, output = none, saved = none, output_gradient = none, input_gradient = none, for_weights = none;
  bool backward_due = false, weights_due = false, hand_over_due = false;  ///< training
  bool forward_due = false, output_due = false;                           ///< forward only
  bool live() const { return backward_due || weights_due || hand_over_due || forward_due || output_due; }
};

struct Transfer {  ///< one end of a message
  int stage, slot, microbatch;
};

struct Lane {  ///< one (source, destination, kind)
  std::vector<Transfer> sends, receives;
  std::size_t delivered = 0;
};

using Key = std::tuple<int, int, bool>;

class Machine {
public:
  /// `slow_copies`: those of activations last until finish_copy(); else they are done at once.
  Machine(schedule::Program const& program, schedule::Execution execution, schedule::Pass pass,
          bool slow_copies = false)
      : program_(&program),
        execution_(execution),
        forward_only_(pass == schedule::Pass::forward_only),
        slow_copies_(slow_copies),
        at(program.ranks.size(), 0),
        copies_(program.ranks.size()),
        weights_(program),
        vocabulary_(program, forward_only_) {
    for (int s = 0; s < program.num_stages; ++s) slots_.emplace_back(at_size(program.num_slots[at_size(s)]));
  }

  /// All that the outcome can depend on: where each rank is, and whether it is inside a blocking send.
  std::vector<std::size_t> state() const {
    auto result = at;
    for (int rank : blocking_) result[at_size(rank)] += 1000000;
    return result;
  }
  /// The action that a rank is at.
  std::size_t place(int rank) const { return at[at_size(rank)]; }
  bool ended(int rank) const { return at[at_size(rank)] == program_->ranks[at_size(rank)].size(); }

  /// Tries one action of a rank, or the two of a pair. False: it must wait. Throws Error.
  bool go(int rank) {
    if (ended(rank)) return false;
    if (!begins_pair(rank)) return one(rank);
    Machine both = *this;  // neither begins before the other one can
    if (!both.one(rank) || !both.one(rank)) return false;
    *this = std::move(both);
    return true;
  }

  /// The oldest copy of a rank ends: they follow each other. False: there is none.
  bool finish_copy(int rank) {
    if (copies_[at_size(rank)].empty()) return false;
    copies_[at_size(rank)].pop_front();
    for (auto& [key, lane] : lanes_) deliver(lane, std::get<2>(key));
    return true;
  }

  void check_end() const {
    for (int rank = 0; rank < program_->num_ranks; ++rank)
      if (!forward_only_ && !stepped_.contains(rank) && !all_stages_step(rank))
        throw Error{Outcome::wrong_result, "a rank without a step"};
    weights_.check_end(forward_only_);
    vocabulary_.check_end();
    for (int s = 0; s < program_->num_stages; ++s)
      for (int m = 0; m < program_->num_microbatches; ++m)
        if (!ran_.contains({s, m})) throw Error{Outcome::wrong_result, "a forward is missing"};
    for (auto const& of_stage : slots_)
      for (Buffers const& b : of_stage)
        if (b.live()) throw Error{Outcome::wrong_result, "an output that nobody reads"};
    // An eager send that nobody receives is met by the first receive of the next step.
    for (auto const& [key, lane] : lanes_)
      if (lane.sends.size() != lane.receives.size()) throw Error{Outcome::misuse, "a message without its other end"};
  }

private:
  bool one(int rank) {
    Action const& a = program_->ranks[at_size(rank)][at[at_size(rank)]];
    if (forward_only_ && !runs_forward_only(a.op)) throw Error{Outcome::misuse, "more than forward"};
    if (a.op == Op::optimizer_step) {
      if (!step(rank)) return false;
    } else {
      if (a.stage < 0 || a.stage >= program_->num_stages || home(a.stage) != rank)
        throw Error{Outcome::misuse, "foreign stage"};
      if (stepped_.contains(rank)) throw Error{Outcome::wrong_result, "works after the step"};
      if (!of_stage(rank, a)) return false;
    }
    ++at[at_size(rank)];
    return true;
  }

  static bool runs_forward_only(Op op) {
    switch (op) {
      case Op::forward:
      case Op::send_activation:
      case Op::recv_activation:
      case Op::gather_weights:
      case Op::release_weights:
      case Op::offload_weights:
      case Op::reload_weights:
      case Op::embed_forward:
      case Op::head_forward:
      case Op::head_backward: return true;
      default: return false;
    }
  }

  /// Any action but STEP of a rank.
  bool of_stage(int rank, Action const& a) {
    switch (a.op) {
      case Op::gather_weights:
      case Op::release_weights:
      case Op::offload_weights:
      case Op::reload_weights: weights_.move(a); return true;
      case Op::reduce_gradients:
      case Op::reduce_scatter_gradients: weights_.reduce(a); return true;
      case Op::stage_step: weights_.step_stage(a, at[at_size(rank)]); return true;
      case Op::embed_forward:
      case Op::head_forward:
      case Op::head_backward:
      case Op::embed_backward:
        if (!vocabulary_.act(rank, a)) return false;
        weights_.compute(a);
        return true;
      default: break;
    }
    if (a.microbatch < 0 || a.microbatch >= program_->num_microbatches || a.slot < 0 ||
        a.slot >= static_cast<int>(slots_[at_size(a.stage)].size()))
      throw Error{Outcome::misuse, "out of range"};
    if (!vocabulary_.takes(rank, a) || !act(rank, a)) return false;
    vocabulary_.gives(rank, a);
    if (computes(a.op)) weights_.compute(a);
    return true;
  }

  static bool computes(Op op) {
    return op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight;
  }
  bool begins_pair(int rank) const {
    auto const& list = program_->ranks[at_size(rank)];
    std::size_t const i = at[at_size(rank)];
    return execution_.pairs && i + 1 < list.size() && list[i].op == Op::forward && computes(list[i + 1].op) &&
           list[i + 1].op != Op::forward && list[i + 1].microbatch != list[i].microbatch;
  }
  bool all_stages_step(int rank) const {
    auto const& list = program_->ranks[at_size(rank)];
    for (int s = 0; s < program_->num_stages; ++s)
      if (home(s) == rank && std::none_of(list.begin(), list.end(),
                                          [&](Action const& a) { return a.op == Op::stage_step && a.stage == s; }))
        return false;
    return true;
  }

  static std::size_t at_size(int i) { return static_cast<std::size_t>(i); }
  int home(int stage) const { return program_->stage_rank[at_size(stage)]; }
  /// A copy of activations on its way out of a slot, or back into one.
  struct Copy {
    int stage, slot, microbatch;
    bool back, with_gradients;
  };
  void start_copy(Action const& a, bool with_gradients) {
    if (slow_copies_)
      copies_[at_size(home(a.stage))].push_back(
          {a.stage, a.slot, a.microbatch, a.op == Op::reload_activations, with_gradients});
  }
  bool leaves_slot(int stage, int slot, bool gradients_only) const {
    auto const& copies = copies_[at_size(home(stage))];
    return std::any_of(copies.begin(), copies.end(), [&](Copy const& c) {
      return !c.back && c.stage == stage && c.slot == slot && (c.with_gradients || !gradients_only);
    });
  }
  bool comes_back(int stage, int microbatch) const {
    auto const& copies = copies_[at_size(home(stage))];
    return std::any_of(copies.begin(), copies.end(),
                       [&](Copy const& c) { return c.back && c.stage == stage && c.microbatch == microbatch; });
  }
  /// Any of the slots that F, B or I reads.
  bool inputs_come_back(Action const& a) const {
    bool yes = comes_back(a.stage, a.microbatch);
    for (int step : {-1, 1})
      for (int s = a.stage; near(s + step, s); s += step) yes = yes || comes_back(s + step, a.microbatch);
    return yes;
  }

  bool exists(int stage) const { return stage >= 0 && stage < program_->num_stages; }
  bool far(int a, int b) const { return exists(a) && exists(b) && home(a) != home(b); }
  bool near(int a, int b) const { return exists(a) && exists(b) && home(a) == home(b); }
  Buffers& slot(Action const& a) { return slots_[at_size(a.stage)][at_size(a.slot)]; }

  Buffers* holder(int stage, int microbatch) {
    for (Buffers& b : slots_[at_size(stage)])
      if (b.user == microbatch) return &b;
    return nullptr;
  }

  /// The number of sends in a lane whose data the receiver has not got yet (eager sends are complete at once).
  std::size_t outstanding(Lane const& lane) const {
    return execution_.rendezvous ? lane.sends.size() - lane.delivered : 0;
  }

  /// Moves data for every pair of a send and a receive that has met.
  void deliver(Lane& lane, bool is_gradient) {
    for (; lane.delivered < std::min(lane.sends.size(), lane.receives.size()); ++lane.delivered) {
      Transfer const from = lane.sends[lane.delivered], to = lane.receives[lane.delivered];
      if (leaves_slot(to.stage, to.slot, is_gradient)) return;  // the receive is put off
      Buffers& b = slots_[at_size(to.stage)][at_size(to.slot)];
      if (b.user != to.microbatch) throw Error{Outcome::misuse, "data arrive in a slot that has gone"};
      (is_gradient ? b.output_gradient : b.input) =
          is_gradient ? gradient(from.stage, from.microbatch) : activation(from.stage, from.microbatch);
    }
  }

  bool sends_from_slot(Action const& a) const { return sends_from_slot(a, false) || sends_from_slot(a, true); }
  bool sends_from_slot(Action const& a, bool is_gradient) const {
    for (auto const& [key, lane] : lanes_) {
      if (std::get<0>(key) != home(a.stage) || !execution_.rendezvous || std::get<2>(key) != is_gradient) continue;
      for (std::size_t i = lane.delivered; i < lane.sends.size(); ++i)
        if (lane.sends[i].stage == a.stage && lane.sends[i].slot == a.slot) return true;
    }
    return false;
  }

  bool take(Action const& a) {
    Buffers& b = slot(a);
    if (b.live()) throw Error{Outcome::misuse, "slot in use"};
    if (sends_from_slot(a)) return false;
    if ((a.op == Op::forward || execution_.waits_inside) && leaves_slot(a.stage, a.slot, false)) return false;
    b = Buffers{};
    b.user = a.microbatch;
    b.backward_due = b.weights_due = !forward_only_;
    b.hand_over_due = !forward_only_ && a.stage > 0;
    b.forward_due = forward_only_;
    b.output_due = forward_only_ && exists(a.stage + 1);
    if (!taken_.insert({a.stage, a.microbatch}).second) throw Error{Outcome::wrong_result, "a microbatch twice"};
    return true;
  }

  bool act(int rank, Action const& a) {
    Buffers& b = slot(a);
    bool const takes = a.op == Op::recv_activation || (a.op == Op::forward && !far(a.stage - 1, a.stage));
    if (!takes && a.op != Op::reload_activations && b.user != a.microbatch)
      throw Error{Outcome::misuse, "another microbatch's slot"};
    switch (a.op) {
      case Op::recv_activation: return receive(rank, a, a.stage - 1, false);
      case Op::recv_gradient: return receive(rank, a, a.stage + 1, true);
      case Op::send_activation: return send(rank, a, a.stage + 1, false);
      case Op::send_gradient: return send(rank, a, a.stage - 1, true);
      case Op::offload_activations: return offload(a);
      case Op::reload_activations: return reload(a);
      case Op::forward: return forward(a);
      case Op::backward: return backward(a) && weights(a);
      case Op::backward_input: return backward(a);
      case Op::backward_weight: return weights(a);
      default: throw Error{Outcome::misuse, "the interpreter has no rule for this operation"};
    }
  }

  /// What is saved leaves the slot; so do gradients, once they are there. What messages use does not come back.
  bool offload(Action const& a) {
    Buffers& b = slot(a);
    if (b.saved == none) throw Error{Outcome::misuse, "offloads what is not there"};
    if (!b.live()) throw Error{Outcome::misuse, "offloads what nobody needs"};
    if (b.backward_due && posted_.contains({a.stage, a.microbatch, true}))
      throw Error{Outcome::misuse, "a gradient comes into a slot that was offloaded"};
    if (far(a.stage + 1, a.stage) && !sent_.contains({a.stage, a.microbatch, false}))
      throw Error{Outcome::misuse, "offloaded before its output is sent"};
    if (far(a.stage - 1, a.stage) && !b.backward_due && !sent_.contains({a.stage, a.microbatch, true}))
      throw Error{Outcome::misuse, "offloaded before its gradient is sent"};
    if (far(a.stage + 1, a.stage)) b.output = none;
    start_copy(a, !b.backward_due);
    away_[{a.stage, a.microbatch}] = b;
    b = Buffers{};
    return true;
  }
  bool reload(Action const& a) {
    auto const from = away_.find({a.stage, a.microbatch});
    if (from == away_.end()) throw Error{Outcome::misuse, "reloads what is not away"};
    if (slot(a).live()) throw Error{Outcome::misuse, "slot in use"};
    if (!from->second.backward_due && sends_from_slot(a)) return false;  // the gradients come into buffers of messages
    start_copy(a, !from->second.backward_due);
    slot(a) = from->second;
    away_.erase(from);
    return true;
  }
  /// Stages in a row on a rank, before this one or behind it, whose slots it reads.
  void require_here(Action const& a, int step) const {
    for (int s = a.stage; near(s + step, s); s += step)
      if (away_.contains({s + step, a.microbatch})) throw Error{Outcome::misuse, "reads what is offloaded"};
  }

  bool receive(int rank, Action const& a, int from, bool is_gradient) {
    if (!far(from, a.stage)) throw Error{Outcome::misuse, "a receive from nowhere"};
    if (posted_.contains({a.stage, a.microbatch, is_gradient})) throw Error{Outcome::misuse, "a second receive"};
    if (!is_gradient && !take(a)) return false;
    if (is_gradient && sends_from_slot(a, true)) return false;
    if (is_gradient && execution_.waits_inside && leaves_slot(a.stage, a.slot, true)) return false;
    posted_.insert({a.stage, a.microbatch, is_gradient});
    if (is_gradient && !slot(a).backward_due) throw Error{Outcome::misuse, "a receive after its use"};
    Lane& lane = lanes_[{home(from), rank, is_gradient}];
    lane.receives.push_back({a.stage, a.slot, a.microbatch});
    deliver(lane, is_gradient);
    return true;
  }

  bool send(int rank, Action const& a, int to, bool is_gradient) {
    if (!far(to, a.stage)) throw Error{Outcome::misuse, "a send to nowhere"};
    Lane& lane = lanes_[{rank, home(to), is_gradient}];
    bool const started = blocking_.contains(rank);
    if (!started) {
      Buffers& b = slot(a);
      int const value = is_gradient ? b.input_gradient : b.output;
      if (value == none) throw Error{Outcome::misuse, "sends what is not there"};
      if (outstanding(lane) >= static_cast<std::size_t>(std::max(execution_.sends_in_flight, 1))) return false;
      (is_gradient ? b.hand_over_due : b.output_due) = false;
      sent_.insert({a.stage, a.microbatch, is_gradient});
      lane.sends.push_back({a.stage, a.slot, a.microbatch});
      deliver(lane, is_gradient);
    }
    if (execution_.sends_in_flight == 0) {
      blocking_.insert(rank);
      if (outstanding(lane) > 0) return false;
      blocking_.erase(rank);
    }
    return true;
  }

  bool forward(Action const& a) {
    require_here(a, -1);
    if (inputs_come_back(a)) return false;
    if (far(a.stage - 1, a.stage)) {
      if (!posted_.contains({a.stage, a.microbatch, false})) throw Error{Outcome::misuse, "no receive posted"};
      if (slot(a).input == none) return false;
    } else {
      int value = none;
      if (a.stage > 0) {
        Buffers* before = holder(a.stage - 1, a.microbatch);
        if (before == nullptr || before->output == none) throw Error{Outcome::misuse, "no input"};
        value = before->output;
      }
      if (!take(a)) return false;
      slot(a).input = value;
      // Stages in a row on one rank share memory: an output is kept until the last of them has run.
      if (!near(a.stage + 1, a.stage))
        for (int s = a.stage; near(s - 1, s); --s)
          if (Buffers* below = holder(s - 1, a.microbatch)) below->output_due = false;
    }
    Buffers& b = slot(a);
    if (a.stage > 0 && b.input != activation(a.stage - 1, a.microbatch))
      throw Error{Outcome::wrong_result, "wrong input"};
    if (b.saved != none) throw Error{Outcome::misuse, "forward twice"};
    b.saved = a.microbatch;
    b.forward_due = false;
    ran_.insert({a.stage, a.microbatch});
    b.output = activation(a.stage, a.microbatch);
    return true;
  }

  bool backward(Action const& a) {
    Buffers& b = slot(a);
    require_here(a, -1);
    require_here(a, 1);
    if (inputs_come_back(a)) return false;
    if (sends_from_slot(a, true) || (a.op == Op::backward_input && sends_from_slot(a, false))) return false;
    if (b.saved != a.microbatch) throw Error{Outcome::misuse, "no saved activations"};
    if (!b.backward_due) throw Error{Outcome::wrong_result, "backward twice"};
    if (far(a.stage + 1, a.stage)) {
      if (!posted_.contains({a.stage, a.microbatch, true})) throw Error{Outcome::misuse, "no receive posted"};
      if (b.output_gradient == none) return false;
    } else if (near(a.stage + 1, a.stage)) {
      Buffers* after = holder(a.stage + 1, a.microbatch);
      if (after == nullptr || after->input_gradient == none) throw Error{Outcome::misuse, "no gradient"};
      b.output_gradient = after->input_gradient;
      // The gradient is kept until the first of the row has it.
      if (!near(a.stage - 1, a.stage))
        for (int s = a.stage; near(s + 1, s); ++s)
          if (Buffers* above = holder(s + 1, a.microbatch)) above->hand_over_due = false;
    }
    if (exists(a.stage + 1) && b.output_gradient != gradient(a.stage + 1, a.microbatch))
      throw Error{Outcome::wrong_result, "wrong gradient"};
    b.input_gradient = gradient(a.stage, a.microbatch);
    b.for_weights = a.microbatch;
    b.backward_due = false;
    return true;
  }

  bool weights(Action const& a) {
    Buffers& b = slot(a);
    if (b.for_weights != a.microbatch) throw Error{Outcome::misuse, "W without I"};
    if (!b.weights_due) throw Error{Outcome::wrong_result, "W twice"};
    if (comes_back(a.stage, a.microbatch)) return false;
    b.weights_due = false;
    return true;
  }

  bool step(int rank) {
    if (stepped_.contains(rank)) throw Error{Outcome::wrong_result, "two steps"};
    for (auto const& [key, lane] : lanes_) {
      if (std::get<0>(key) == rank && outstanding(lane) > 0) return false;
      if (std::get<1>(key) == rank && lane.delivered < lane.receives.size()) return false;
    }
    if (!vocabulary_.over()) return false;
    weights_.step_rank(rank);
    stepped_.insert(rank);
    return true;
  }

  schedule::Program const* program_;
  schedule::Execution execution_;
  bool forward_only_, slow_copies_;
  std::vector<std::size_t> at;
  std::vector<std::deque<Copy>> copies_;  ///< by rank, in their order
  InterpretedWeights weights_;
  InterpretedVocabulary vocabulary_;
  std::vector<std::vector<Buffers>> slots_;
  std::map<Key, Lane> lanes_;
  std::set<std::tuple<int, int, bool>> posted_, sent_;
  std::map<std::pair<int, int>, Buffers> away_;  ///< by (stage, microbatch)
  std::set<std::pair<int, int>> taken_;
  std::set<std::pair<int, int>> ran_;  ///< (stage, microbatch)
  std::set<int> stepped_, blocking_;
};

}  // namespace p3d::test
