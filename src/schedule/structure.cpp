// SPDX-License-Identifier: Apache-2.0
// The validator's first part: what can be seen without running. The sizes are sound, every action names what exists and
// stands on its stage's rank, each is there exactly once, and messages connect stages on different ranks. Example: a
// program without 1B0 is refused with "1B0 (or I and W) is missing".

#include "channels.hpp"
#include "validator.hpp"

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <fmt/format.h>

namespace p3d::schedule {
namespace {

class StructureCheck {
public:
  StructureCheck(Program const& program, Pass pass) : program_(program), training_(pass == Pass::training) {}

  std::vector<Violation> check() {
    if (!sizes()) return found_;
    seen_.assign(static_cast<std::size_t>(program_.num_stages) * static_cast<std::size_t>(program_.num_microbatches),
                 0);
    reductions_.assign(static_cast<std::size_t>(program_.num_stages), {});
    steps_.assign(static_cast<std::size_t>(program_.num_stages), 0);
    for (auto const& actions : program_.ranks)
      for (Action const& a : actions)
        if (a.op == Op::stage_step && a.stage >= 0 && a.stage < program_.num_stages)
          ++steps_[static_cast<std::size_t>(a.stage)];
    stages_of_.assign(static_cast<std::size_t>(program_.num_ranks), 0);
    updated_alone_.assign(stages_of_.size(), 0);
    for (int s = 0; s < program_.num_stages; ++s) {
      auto const rank = static_cast<std::size_t>(rank_of(program_, s));
      ++stages_of_[rank];
      updated_alone_[rank] += steps_of(s) > 0;
    }
    for (int rank = 0; rank < program_.num_ranks; ++rank) list(rank);
    if (found_.empty()) missing();
    if (found_.empty()) vocabulary();
    return found_;
  }

private:
  template <class... Args>
  void error(int rank, int index, fmt::format_string<Args...> text, Args&&... args) {
    if (found_.size() < max_violations) found_.push_back({rank, index, fmt::format(text, std::forward<Args>(args)...)});
  }

  bool sizes() {
    Program const& p = program_;
    auto const size = [](auto const& v) { return static_cast<int>(v.size()); };
    if (p.num_stages < 1 || p.num_ranks < 1 || p.num_microbatches < 1)
      error(-1, -1, "{} stages, {} ranks and {} microbatches: each must be at least 1", p.num_stages, p.num_ranks,
            p.num_microbatches);
    else if (std::int64_t{p.num_stages} * p.num_microbatches > most_forwards)
      error(-1, -1, "{} stages x {} microbatches: more than {} forwards", p.num_stages, p.num_microbatches,
            most_forwards);
    else if (p.tied &&
             (p.num_stages < 2 || size(p.stage_rank) != p.num_stages || p.stage_rank.front() != p.stage_rank.back()))
      error(-1, -1, "the last stage is to use the weights of stage 0, which is not another one on its rank");
    else if (size(p.stage_rank) != p.num_stages)
      error(-1, -1, "stage_rank has {} entries for {} stages", p.stage_rank.size(), p.num_stages);
    else if (size(p.num_slots) != p.num_stages)
      error(-1, -1, "num_slots has {} entries for {} stages: run assign_slots", p.num_slots.size(), p.num_stages);
    else if (size(p.ranks) != p.num_ranks)
      error(-1, -1, "{} lists of actions for {} ranks", p.ranks.size(), p.num_ranks);
    else
      for (int s = 0; s < p.num_stages; ++s) {
        int const slots = p.num_slots[static_cast<std::size_t>(s)];
        if (rank_of(p, s) < 0 || rank_of(p, s) >= p.num_ranks)
          error(-1, -1, "stage {} is on rank {}", s, rank_of(p, s));
        if (slots < 0 || slots > p.num_microbatches)
          error(-1, -1, "stage {} has {} slots for {} microbatches", s, slots, p.num_microbatches);
      }
    return found_.empty();
  }

  void list(int rank) {
    auto const& actions = program_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      int const index = static_cast<int>(i);
      if (!training_ && !(a.op == Op::forward || a.op == Op::send_activation || a.op == Op::recv_activation ||
                          moves_weights(a.op) || (is_vocabulary(a.op) && a.op != Op::embed_backward))) {
        error(rank, index, "has no place in a program that only runs forward");
        continue;
      }
      if (static_cast<std::size_t>(a.op) >= num_ops) {
        error(rank, index, "unknown action");
        continue;
      }
      if (a.op == Op::optimizer_step) {
        if (i + 1 != actions.size()) error(rank, index, "STEP is not the last action of the rank");
        continue;
      }
      if (a.stage < 0 || a.stage >= program_.num_stages)
        error(rank, index, "stage {} of {}", a.stage, program_.num_stages);
      else if (rank_of(program_, a.stage) != rank)
        error(rank, index, "stage {} lives on rank {}", a.stage, rank_of(program_, a.stage));
      else if (a.version < 0 || a.version > steps_of(a.stage))
        error(rank, index, "version {} of the weights of stage {}, which is updated {} times", a.version, a.stage,
              steps_of(a.stage));
      else if (is_vocabulary(a.op))
        part(rank, index, a);
      else if (has_microbatch(a.op))
        once(rank, index, a);
      else if (reduces(a.op))
        reduction(rank, index, a);
    }
    updates(rank);
  }

  /// Several reductions of a stage are the business of check_weights: parts of its gradients, or one for each update.
  void reduction(int rank, int index, Action const& a) {
    auto& met = reductions_[static_cast<std::size_t>(a.stage)];
    if (met.number > 0 && met.op != a.op) error(rank, index, "stage {} has both REDUCE and REDUCE_SCATTER", a.stage);
    if (met.number >= program_.workers && a.op == Op::reduce_gradients && steps_of(a.stage) == 0)
      error(rank, index, "stage {} is reduced twice", a.stage);
    met = {met.number + 1, a.op};
  }

  /// A rank updates its stages all together, by its last action, or each by itself.
  void updates(int rank) {
    if (!training_) return;
    auto const& actions = program_.ranks[static_cast<std::size_t>(rank)];
    bool const together = !actions.empty() && actions.back().op == Op::optimizer_step;
    int const stages = stages_of_[static_cast<std::size_t>(rank)],
              alone = updated_alone_[static_cast<std::size_t>(rank)];
    if (alone == 0 && !together) error(rank, -1, "the rank's last action is not STEP");
    if (alone > 0 && together)
      error(rank, static_cast<int>(actions.size()) - 1, "STEP updates stages that are updated by themselves too");
    if (alone > 0 && !together && alone < stages)
      error(rank, -1, "{} of the rank's {} stages are updated, the others never", alone, stages);
  }

  int steps_of(int stage) const { return steps_[static_cast<std::size_t>(stage)]; }

  void once(int rank, int index, Action const& a) {
    int const slots = program_.num_slots[static_cast<std::size_t>(a.stage)];
    if (a.microbatch < 0 || a.microbatch >= program_.num_microbatches)
      return error(rank, index, "microbatch {} of {}", a.microbatch, program_.num_microbatches);
    if (a.slot < 0 || a.slot >= slots) return error(rank, index, "slot {} of {} on stage {}", a.slot, slots, a.stage);
    if (moves_activations(a.op)) return;  // check_progress() follows them
    if (is_message(a.op) && !wanted_message(a))
      return error(rank, index, "there is no message here: stages {} and {} {}", a.stage, peer_stage(a),
                   peer_stage(a) < 0 || peer_stage(a) >= program_.num_stages ? "do not both exist" : "share a rank");
    OpSet& seen = seen_[cell(program_, a.stage, a.microbatch)];
    if (seen & bit(a.op)) return error(rank, index, "a second {}", to_string({a.op, a.stage, a.microbatch}));
    seen |= bit(a.op);
    if ((seen & bit(Op::backward)) && (seen & (bit(Op::backward_input) | bit(Op::backward_weight))))
      error(rank, index, "stage {} has both B and I or W of microbatch {}", a.stage, a.microbatch);
  }

  /// E, S, T or G.
  void part(int rank, int index, Action const& a) {
    if (!program_.divides_vocabulary) return error(rank, index, "the vocabulary is not divided");
    if (first_stage_of(program_, rank) != a.stage)
      return error(rank, index, "names stage {}, not {}, the first of its rank", a.stage,
                   first_stage_of(program_, rank));
    if (a.microbatch < 0 || a.microbatch >= program_.num_microbatches)
      return error(rank, index, "microbatch {} of {}", a.microbatch, program_.num_microbatches);
    if (int const slot = vocabulary_slot(a.op, a.microbatch); a.slot != slot)
      error(rank, index, "is in slot {}, not in {}: slots are used in turn", a.slot, slot);
  }

  /// The ranks exchange in the order of the microbatches.
  void vocabulary() {
    if (!program_.divides_vocabulary) return;
    std::vector<Op> kinds{Op::embed_forward, Op::head_forward, Op::head_backward};
    if (training_) kinds.push_back(Op::embed_backward);
    int const last = program_.num_stages - 1;
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      auto const& actions = program_.ranks[static_cast<std::size_t>(rank)];
      auto const in_order = [&](auto const& concerns, std::string const& what) {
        int next = 0;
        for (std::size_t i = 0; i < actions.size(); ++i) {
          if (!concerns(actions[i])) continue;
          if (actions[i].microbatch != next)
            return error(rank, static_cast<int>(i), "comes where {} of microbatch {} is due", what, next);
          ++next;
        }
        if (next != program_.num_microbatches) error(rank, -1, "{} of microbatch {} is missing", what, next);
      };
      for (Op kind : kinds)
        in_order([&](Action const& a) { return a.op == kind; }, to_string({kind, first_stage_of(program_, rank)}));
      if (rank_of(program_, last) == rank)
        in_order([&](Action const& a) { return a.op == Op::forward && a.stage == last; }, "the last stage's F");
      if (rank_of(program_, 0) == rank && training_)
        in_order([&](Action const& a) { return makes_input_gradient(a.op) && a.stage == 0; }, "the first stage's B");
    }
  }

  bool wanted_message(Action const& a) const {
    return a.op == Op::send_activation || a.op == Op::recv_gradient ? output_is_remote(program_, a.stage)
                                                                    : input_is_remote(program_, a.stage);
  }

  void missing() {
    for (int s = 0; s < program_.num_stages; ++s) {
      OpSet needed = bit(Op::forward);
      if (input_is_remote(program_, s)) needed |= bit(Op::recv_activation) | bit(Op::send_gradient);
      if (output_is_remote(program_, s)) needed |= bit(Op::send_activation) | bit(Op::recv_gradient);
      if (!training_) needed &= ~(bit(Op::send_gradient) | bit(Op::recv_gradient));
      for (int m = 0; m < program_.num_microbatches && found_.size() < max_violations; ++m) {
        OpSet const seen = seen_[cell(program_, s, m)];
        OpSet const backward = !training_                 ? 0U
                               : seen & bit(Op::backward) ? bit(Op::backward)
                                                          : bit(Op::backward_input) | bit(Op::backward_weight);
        OpSet const lacking = (needed | backward) & ~seen;
        if (lacking == 0) continue;
        bool const none = training_ && (seen & (bit(Op::backward) | backward)) == 0;
        for (Op op : {Op::forward, Op::backward_input, Op::backward_weight, Op::send_activation, Op::recv_activation,
                      Op::send_gradient, Op::recv_gradient}) {
          if (!(lacking & bit(op)) || (none && op == Op::backward_weight)) continue;
          bool const any_backward = none && op == Op::backward_input;
          error(rank_of(program_, s), first_of(s, m), "{} is missing",
                any_backward ? fmt::format("{}B{} (or I and W)", s, m) : to_string({op, s, m}));
        }
      }
      int const reductions = reductions_[static_cast<std::size_t>(s)].number;
      if (training_ && reductions < program_.workers)
        error(rank_of(program_, s), -1, "{}REDUCE is missing{}", s,
              reductions > 0 ? fmt::format(" of worker {}", reductions + 1) : "");
    }
  }

  /// The first action of this stage and microbatch: something to mark near what is missing. Only walked for an error.
  int first_of(int stage, int microbatch) const {
    auto const& actions = program_.ranks[static_cast<std::size_t>(rank_of(program_, stage))];
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (actions[i].stage == stage && actions[i].microbatch == microbatch) return static_cast<int>(i);
    return -1;
  }

  Program const& program_;
  bool training_;
  std::vector<Violation> found_;
  std::vector<OpSet> seen_;  ///< the actions of each cell that were met
  struct Reductions {
    int number = 0;
    Op op = Op::reduce_gradients;
  };
  std::vector<Reductions> reductions_;  ///< reductions of each stage that were met
  std::vector<int> steps_;              ///< updates of its own of each stage
  std::vector<int> stages_of_;          ///< how many stages each rank has
  std::vector<int> updated_alone_;      ///< how many of its stages each rank updates by themselves
};

}  // namespace

std::vector<Violation> check_structure(Program const& program, Pass pass) {
  return StructureCheck(program, pass).check();
}

}  // namespace p3d::schedule
