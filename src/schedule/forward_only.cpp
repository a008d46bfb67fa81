// SPDX-License-Identifier: Apache-2.0
// Programs without backwards, from the program of a step.

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/valid_program.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <algorithm>

#include "channels.hpp"

namespace p3d::schedule {

namespace {

Program without_actions(std::vector<int> const& stage_rank, int num_ranks, int microbatches) {
  Program p;
  p.num_stages = static_cast<int>(stage_rank.size());
  p.num_ranks = num_ranks;
  p.num_microbatches = microbatches;
  p.stage_rank = stage_rank;
  p.ranks.resize(static_cast<std::size_t>(num_ranks));
  return p;
}

bool needs_no_more_slots(Program const& a, Program const& b) {
  for (std::size_t s = 0; s < a.num_slots.size(); ++s)
    if (a.num_slots[s] > b.num_slots[s]) return false;
  return true;
}

}  // namespace

Program forward_by_microbatch(std::vector<int> const& stage_rank, int num_ranks, int microbatches,
                              bool divides_vocabulary) {
  Program p = without_actions(stage_rank, num_ranks, microbatches);
  p.num_slots.assign(stage_rank.size(), 1);
  p.divides_vocabulary = divides_vocabulary;
  auto const all = [&](Op op, int m) {
    for (int r = 0; r < num_ranks && divides_vocabulary; ++r)
      p.ranks[static_cast<std::size_t>(r)].push_back({op, first_stage_of(p, r), m, vocabulary_slot(op, m)});
  };
  for (int m = 0; m < microbatches; ++m) {
    all(Op::embed_forward, m);
    for (int s = 0; s < p.num_stages; ++s) {
      auto& list = p.ranks[static_cast<std::size_t>(rank_of(p, s))];
      if (input_is_remote(p, s)) list.push_back({Op::recv_activation, s, m, 0});
      list.push_back({Op::forward, s, m, 0});
      if (output_is_remote(p, s)) list.push_back({Op::send_activation, s, m, 0});
    }
    all(Op::head_forward, m);
    all(Op::head_backward, m);
  }
  return p;
}

ValidProgram forward_only(ValidProgram const& training, int microbatches) {
  Program const& t = training;
  P3D_REQUIRE(microbatches >= 1 && microbatches <= t.num_microbatches, "the forwards are training's");
  bool offloads = false;
  for (auto const& list : t.ranks)
    for (Action const& a : list) offloads = offloads || moves_activations(a.op);
  Program compute = without_actions(t.stage_rank, t.num_ranks, microbatches);
  compute.tied = t.tied;
  compute.divides_vocabulary = t.divides_vocabulary;
  for (std::size_t r = 0; r < t.ranks.size(); ++r)
    for (Action const& a : t.ranks[r])
      if ((a.op == Op::forward || (is_vocabulary(a.op) && a.op != Op::embed_backward)) && a.microbatch < microbatches)
        compute.ranks[r].push_back({a.op, a.stage, a.microbatch, is_vocabulary(a.op) ? a.slot : -1});
  require_in_range(compute);
  ReceiveTimes const times(compute);
  // Slots that are taken earlier are more slots, and a send waits longer until it is in the way.
  std::size_t longest = 0;
  for (auto const& list : compute.ranks) longest = std::max(longest, list.size());
  for (int lookahead : {0, t.num_ranks, static_cast<int>(longest)}) {
    Program p = compute;
    assign_slots(p, lookahead, times);
    if ((lookahead > 0 || offloads) && !needs_no_more_slots(p, t)) break;
    add_messages(p, 1, any_number, times);
    bring_weights(p, t);
    if (validate(p, training.execution(), Pass::forward_only).empty())
      return {std::move(p), training.execution(), Pass::forward_only};
  }
  Program p = forward_by_microbatch(t.stage_rank, t.num_ranks, microbatches, t.divides_vocabulary);
  p.tied = t.tied;
  bring_weights(p, t);
  return {std::move(p), training.execution(), Pass::forward_only};
}

}  // namespace p3d::schedule
