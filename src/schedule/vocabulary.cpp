// SPDX-License-Identifier: Apache-2.0
// The pass that divides the vocabulary: a list scheduler. Each rank has a queue of actions of every kind, in the order
// of the old program; again and again the action that could begin first, by the given times, is taken. Example: while
// rank 1 waits for the output of microbatch 0, it may run E of microbatch 1.

#include <p3d/schedule/vocabulary.hpp>

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace p3d::schedule {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// The actions of one rank by kind, in their order, and how many of each are done.
struct RankQueues {
  enum Kind { forwards, inputs, weights, embeds, heads, head_gradients, embed_gradients, kinds };
  std::array<std::vector<Action>, kinds> actions;
  std::array<std::size_t, kinds> done{};
  int live = 0, most_live = 0;
  double free = 0.0;  ///< the time from which on the rank is free
};

/// T and G of each rank in the order in which it must execute them; empty: in any order.
using GradientOrder = std::vector<std::vector<Op>>;

class ListScheduler {
public:
  using Q = RankQueues;
  ListScheduler(Program const& compute, VocabularyTimes const& times, VocabularyOrder order, int ahead,
                GradientOrder gradients)
      : program_(compute),
        times_(times),
        forwards_first_(order == VocabularyOrder::forwards_first),
        gradients_(std::move(gradients)) {
    auto const cells = at(program_.num_stages) * at(program_.num_microbatches);
    forward_.assign(cells, never);
    input_.assign(cells, never);
    for (auto* exchange : {&sum_, &output_, &parts_, &input_gradient_, &gradient_, &taken_})
      exchange->resize(at(program_.num_microbatches));
    for (int r = 0; r < program_.num_ranks; ++r) ranks_.push_back(queues(r, ahead));
    sums_.resize(at(program_.num_stages));
    summed_.resize(sums_.size());
    for (auto const& actions : program_.ranks)
      for (Action const& a : actions)
        if (makes_weight_gradient(a.op)) sums_[at(a.stage)].push_back(a.microbatch);
  }

  std::vector<std::vector<Action>> run() {
    std::vector<std::vector<Action>> lists(ranks_.size());
    choices_.resize(ranks_.size());
    for (int r = 0; r < program_.num_ranks; ++r) renew(r);
    while (!next_.empty()) {  // the action that could begin first
      int const rank = next_.begin()->second;
      Action const a = execute(rank, *choices_[at(rank)]);
      lists[at(rank)].push_back(a);
      int const neighbour = a.op == Op::forward ? a.stage + 1 : makes_input_gradient(a.op) ? a.stage - 1 : -1;
      if (std::exchange(all_changed_, false)) {
        for (int r = 0; r < program_.num_ranks; ++r) renew(r);
        continue;
      }
      renew(rank);
      if (neighbour >= 0 && neighbour < program_.num_stages) renew(rank_of(program_, neighbour));
    }
    for (auto const& q : ranks_)
      for (int k = 0; k < Q::kinds; ++k)
        P3D_REQUIRE(q.done[at(k)] == q.actions[at(k)].size(), "a list with the vocabulary divided runs to its end");
    return lists;
  }

private:
  struct Choice {
    double begin;
    Q::Kind kind;
  };
  /// An exchange of a microbatch: all ranks bring something, or one gives to all.
  struct Exchange {
    int count = 0;
    double time = 0.0;
  };

  Q queues(int rank, int ahead) const {
    Q q;
    int live = 0;
    for (Action const& a : program_.ranks[at(rank)]) {
      P3D_REQUIRE(is_compute(a.op), "the vocabulary is divided in programs of compute actions");
      if (a.op == Op::forward) q.actions[Q::forwards].push_back(a);
      if (makes_input_gradient(a.op)) q.actions[Q::inputs].push_back(a);
      if (a.op == Op::backward_weight) q.actions[Q::weights].push_back(a);
      live += (a.op == Op::forward) - makes_weight_gradient(a.op);
      q.most_live = std::max(q.most_live, live);
    }
    // A microbatch more ahead is one on each of the rank's stages.
    auto const stages = std::count(program_.stage_rank.begin(), program_.stage_rank.end(), rank);
    q.most_live += ahead * static_cast<int>(stages);
    int const stage = first_stage_of(program_, rank);
    for (int m = 0; m < program_.num_microbatches; ++m) {
      auto const add = [&](Q::Kind kind, Op op) { q.actions[kind].push_back({op, stage, m, vocabulary_slot(op, m)}); };
      add(Q::embeds, Op::embed_forward);
      add(Q::heads, Op::head_forward);
      add(Q::head_gradients, Op::head_backward);
      add(Q::embed_gradients, Op::embed_backward);
    }
    return q;
  }

  double complete(Exchange const& e, int wanted) const { return e.count == wanted ? e.time + times_.exchange : never; }

  /// The time at which what an action reads is there; never: not known yet, or its buffer is in use.
  double ready(int rank, Action const& a) const {
    auto const& q = ranks_[at(rank)];
    int const m = a.microbatch, last = program_.num_stages - 1, all = program_.num_ranks;
    switch (a.op) {
      case Op::embed_forward: {
        int const before = m - vocabulary_slots.embed;
        return before < 0 ? 0.0 : forward_[cell(program_, 0, before)];
      }
      case Op::head_forward: {
        int const before = m - vocabulary_slots.head;
        if (before >= 0 && input_gradient_[at(before)].count < all) return never;
        return complete(output_[at(m)], 1);
      }
      case Op::head_backward: {
        int const before = m - vocabulary_slots.head;
        if (before >= 0 && input_[cell(program_, last, before)] == never) return never;
        return complete(parts_[at(m)], all);
      }
      case Op::embed_backward: {
        int const before = m - vocabulary_slots.gradient;
        if (before >= 0 && taken_[at(before)].count < all) return never;
        return complete(gradient_[at(m)], 1);
      }
      case Op::forward: {
        if (q.live >= q.most_live) return never;
        // The last stage hands its output over in a buffer that T has read.
        if (a.stage == last && m - static_cast<int>(q.done[Q::head_gradients]) >= vocabulary_slots.head) return never;
        return a.stage == 0 ? complete(sum_[at(m)], all) : forward_[cell(program_, a.stage - 1, m)];
      }
      case Op::backward_weight: return input_[cell(program_, a.stage, m)];
      default: {
        if (a.stage == 0 && m - static_cast<int>(q.done[Q::embed_gradients]) >= vocabulary_slots.gradient) return never;
        return a.stage == last ? complete(input_gradient_[at(m)], all) : input_[cell(program_, a.stage + 1, m)];
      }
    }
  }

  /// Chooses anew what a rank would do next, after something that it could wait for.
  void renew(int rank) {
    auto& choice = choices_[at(rank)];
    if (choice) next_.erase({choice->begin, rank});
    choice = choose(rank);
    if (choice) next_.insert({choice->begin, rank});
  }

  std::optional<Choice> choose(int rank) const {
    auto const& q = ranks_[at(rank)];
    std::array<Q::Kind, Q::kinds> order{Q::heads,    Q::head_gradients, Q::embeds, Q::embed_gradients,
                                        Q::forwards, Q::inputs,         Q::weights};
    if (!forwards_first_) std::swap(order[4], order[5]);
    std::optional<Choice> best;
    for (int k = 0; k < Q::kinds; ++k) {
      auto const kind = order[at(k)];
      if (q.done[kind] == q.actions[kind].size() || !has_turn(rank, kind)) continue;
      double const time = std::max(q.free, ready(rank, q.actions[kind][q.done[kind]]));
      if (time == never || (best && best->begin <= time)) continue;
      best = Choice{time, kind};
    }
    return best;
  }

  /// Whether the next action of this kind adds to a gradient in the order of its sums: that of the schedule for a
  /// stage's weights, the given one for T and G. True of what adds to none.
  bool has_turn(int rank, Q::Kind kind) const {
    auto const& next_one = ranks_[at(rank)].actions[kind][ranks_[at(rank)].done[kind]];
    if (makes_weight_gradient(next_one.op))
      return sums_[at(next_one.stage)][summed_[at(next_one.stage)]] == next_one.microbatch;
    if (gradients_.empty() || (kind != Q::head_gradients && kind != Q::embed_gradients)) return true;
    auto const& q = ranks_[at(rank)];
    auto const next = gradients_[at(rank)][q.done[Q::head_gradients] + q.done[Q::embed_gradients]];
    return q.actions[kind].front().op == next;
  }

  double duration(Action const& a) const {
    auto const& stage = times_.stages[at(a.stage)];
    switch (a.op) {
      case Op::forward: return stage.forward;
      case Op::backward: return stage.input + stage.weight;
      case Op::backward_input: return stage.input;
      case Op::backward_weight: return stage.weight;
      case Op::head_forward: return times_.head_forward;
      case Op::head_backward: return times_.head_backward;
      case Op::embed_forward:
      case Op::embed_backward: return times_.embed;
      default: P3D_REQUIRE(false, "the program computes only");
    }
  }

  Action execute(int rank, Choice const& choice) {
    auto& q = ranks_[at(rank)];
    Action const a = q.actions[choice.kind][q.done[choice.kind]++];
    double const end = q.free = choice.begin + duration(a);
    int const m = a.microbatch, last = program_.num_stages - 1;
    auto const bring = [&](std::vector<Exchange>& to, int wanted) {
      to[at(m)].time = std::max(to[at(m)].time, end);
      all_changed_ = all_changed_ || ++to[at(m)].count == wanted;
    };
    int const all = program_.num_ranks;
    q.live += (a.op == Op::forward) - makes_weight_gradient(a.op);
    if (makes_weight_gradient(a.op)) ++summed_[at(a.stage)];
    if (a.op == Op::forward) forward_[cell(program_, a.stage, m)] = end;
    if (makes_input_gradient(a.op)) input_[cell(program_, a.stage, m)] = end;
    if (a.op == Op::forward && a.stage == last) bring(output_, 1);
    if (makes_input_gradient(a.op) && a.stage == 0) bring(gradient_, 1);
    if (a.op == Op::embed_forward) bring(sum_, all);
    if (a.op == Op::head_forward) bring(parts_, all);
    if (a.op == Op::head_backward) bring(input_gradient_, all);
    if (a.op == Op::embed_backward) bring(taken_, all);
    // Buffers that all ranks may use again.
    all_changed_ = all_changed_ || (a.op == Op::forward && a.stage == 0);
    all_changed_ = all_changed_ || (makes_input_gradient(a.op) && a.stage == last);
    return a;
  }

  Program const& program_;
  VocabularyTimes const& times_;
  bool forwards_first_;
  GradientOrder gradients_;
  std::vector<RankQueues> ranks_;
  std::vector<std::vector<int>> sums_;   ///< microbatches in the order in which B and W add to each stage's gradients
  std::vector<std::size_t> summed_;      ///< number of them that are done
  std::vector<double> forward_, input_;  ///< the end of F of each cell, and of B or I
  std::vector<Exchange> sum_, output_, parts_, input_gradient_, gradient_;
  std::vector<Exchange> taken_;                 ///< gradients that G has taken
  std::vector<std::optional<Choice>> choices_;  ///< choice of each rank
  std::set<std::pair<double, int>> next_;       ///< times at which ranks could begin what they have chosen
  bool all_changed_ = false;                    ///< something happened that any rank could wait for
};

/// T and G in the order that they have with times of which none is the model's: F and W take 1, the input part of a
/// backward 1.2, S a half, T 1 and an exchange a tenth. With this order a list still runs to its end, as without: of
/// the actions in the order of these times, the first that is not done can be done. Bubbles of GPT-2 124M grow by 0.6
/// points at most, and shrink on average.
GradientOrder gradient_order(Program const& compute, int ahead) {
  VocabularyTimes times{.stages = {}, .head_forward = 0.5, .head_backward = 1, .exchange = 0.1};
  times.stages.assign(at(compute.num_stages), {.forward = 1, .input = 1.2, .weight = 1});
  GradientOrder out;
  for (auto const& actions : ListScheduler(compute, times, VocabularyOrder::forwards_first, ahead, {}).run()) {
    auto& order = out.emplace_back();
    for (Action const& a : actions)
      if (makes_vocabulary_gradient(a.op)) order.push_back(a.op);
  }
  return out;
}

}  // namespace

std::vector<bool> completes_gradients(Program const& program, int rank, std::vector<Action> const& actions) {
  int const owner = program.divides_vocabulary ? first_stage_of(program, rank) : -1;
  std::map<int, std::size_t> last, last_of_part;  // by stage
  std::vector<bool> out(actions.size(), false);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    auto const& a = actions[i];
    if (makes_weight_gradient(a.op)) last[a.stage] = i;
    if (makes_vocabulary_gradient(a.op)) last_of_part[a.stage] = i;
    if (!reduces(a.op)) continue;
    out[last.at(a.stage)] = true;
    if (auto const part = last_of_part.extract(a.stage))
      out[part.mapped()] = true;
    else
      out[i] = a.stage == owner;
  }
  return out;
}

int first_stage_of(Program const& program, int rank) {
  auto const found = std::find(program.stage_rank.begin(), program.stage_rank.end(), rank);
  P3D_REQUIRE(found != program.stage_rank.end(), "every pipeline rank has a stage");
  return static_cast<int>(found - program.stage_rank.begin());
}

void divide_vocabulary(Program& compute, VocabularyTimes const& times, VocabularyOrder order, int ahead, bool tied) {
  require_in_range(compute);
  P3D_REQUIRE(!compute.divides_vocabulary && !compute.tied, "the vocabulary is divided once");
  P3D_REQUIRE(times.stages.size() == at(compute.num_stages), "every stage has its times");
  auto gradients = tied ? gradient_order(compute, ahead) : GradientOrder{};
  compute.ranks = ListScheduler(compute, times, order, ahead, std::move(gradients)).run();
  compute.divides_vocabulary = true;
}

}  // namespace p3d::schedule
