// SPDX-License-Identifier: Apache-2.0
#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <map>
#include <tuple>

namespace p3d::schedule {

Channels::Channels(Program const& program) {
  auto const stages = static_cast<std::size_t>(program.num_stages);
  activation_out.assign(stages, -1);
  gradient_out.assign(stages, -1);
  std::map<std::tuple<int, int, bool>, int> known;
  auto channel = [&](int from_stage, int to_stage, bool gradient) {
    Channel const wanted{rank_of(program, from_stage), rank_of(program, to_stage), gradient};
    auto const [place, added] =
        known.try_emplace({wanted.source, wanted.destination, gradient}, static_cast<int>(all.size()));
    if (added) all.push_back(wanted);
    return place->second;
  };
  for (int s = 0; s < program.num_stages; ++s) {
    if (output_is_remote(program, s)) activation_out[static_cast<std::size_t>(s)] = channel(s, s + 1, false);
    if (input_is_remote(program, s)) gradient_out[static_cast<std::size_t>(s)] = channel(s, s - 1, true);
  }
}

int Channels::of(Action const& action) const {
  auto const at = [](std::vector<int> const& by_stage, int stage) { return by_stage[static_cast<std::size_t>(stage)]; };
  switch (action.op) {
    case Op::send_activation: return at(activation_out, action.stage);
    case Op::recv_activation: return at(activation_out, action.stage - 1);
    case Op::send_gradient: return at(gradient_out, action.stage);
    case Op::recv_gradient: return at(gradient_out, action.stage + 1);
    default: return -1;
  }
}

ExpectedTimes::ExpectedTimes(Program const& program) : program_(program), start_(program.ranks.size()) {
  auto const stride = static_cast<std::size_t>(program.num_microbatches);
  forward_.assign(static_cast<std::size_t>(program.num_stages) * stride, never);
  backward_ = forward_;
  std::vector<int> clock(program.ranks.size(), 0);
  auto const ready = [&](Action const& a) {
    std::size_t const at = cell(program, a.stage, a.microbatch);
    if (a.op == Op::forward) return a.stage == 0 ? 0 : forward_[at - stride];
    if (a.op == Op::backward_weight) return backward_[at];
    return a.stage + 1 == program.num_stages ? forward_[at] : backward_[at + stride];
  };
  for (std::size_t r = 0; r < start_.size(); ++r) start_[r].reserve(program.ranks[r].size());
  // Up the ranks and down again, as forwards and backwards go.
  bool up = false;
  for (bool moved = true; moved;) {
    moved = false;
    up = !up;
    for (std::size_t i = 0; i < start_.size(); ++i) {
      std::size_t const r = up ? i : start_.size() - 1 - i;
      for (auto const& actions = program.ranks[r]; start_[r].size() < actions.size(); moved = true) {
        Action const& a = actions[start_[r].size()];
        if (!is_compute(a.op)) {  // takes no time
          start_[r].push_back(clock[r]);
          continue;
        }
        int const time = ready(a);
        if (time == never) break;
        start_[r].push_back(std::max(clock[r], time));
        clock[r] = start_[r].back() + (a.op == Op::backward ? 2 : 1);
        std::size_t const at = cell(program, a.stage, a.microbatch);
        if (a.op == Op::forward) forward_[at] = clock[r];
        if (makes_input_gradient(a.op)) backward_[at] = clock[r];
      }
    }
  }
}

int ExpectedTimes::end_of_forward(int stage, int microbatch) const {
  return forward_[cell(program_, stage, microbatch)];
}

int ExpectedTimes::place(int rank, int time) const {
  if (time == never) return never;
  auto const& start = start_[static_cast<std::size_t>(rank)];
  return std::max(0, static_cast<int>(std::upper_bound(start.begin(), start.end(), time) - start.begin()) - 1);
}

Deadlines receive_deadlines(Program const& program, Channels const& channels, ExpectedTimes const& expected) {
  std::size_t const cells =
      static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches);
  Deadlines deadlines{std::vector<int>(cells, -1), std::vector<int>(cells, -1)};
  // First the place of use ...
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      std::size_t const at = cell(program, a.stage, a.microbatch);
      if (a.op == Op::forward && input_is_remote(program, a.stage)) deadlines.activation[at] = static_cast<int>(i);
      if (makes_input_gradient(a.op) && output_is_remote(program, a.stage))
        deadlines.gradient[at] = static_cast<int>(i);
    }
  // ... then never later than a message that was sent after this one, or than that one is expected: walk the sends of
  // each rank backwards.
  std::vector<int> latest(channels.all.size(), -1), next_send(channels.all.size(), ExpectedTimes::never);
  for (auto const& actions : program.ranks)
    for (auto a = actions.rbegin(); a != actions.rend(); ++a) {
      bool const gradient = makes_input_gradient(a->op);
      if (!gradient && a->op != Op::forward) continue;
      auto const& out = gradient ? channels.gradient_out : channels.activation_out;
      int const channel = out[static_cast<std::size_t>(a->stage)];
      if (channel < 0) continue;
      int& mine =
          (gradient ? deadlines.gradient
                    : deadlines.activation)[cell(program, gradient ? a->stage - 1 : a->stage + 1, a->microbatch)];
      int& bound = latest[static_cast<std::size_t>(channel)];
      if (bound >= 0) mine = std::min(mine, bound);
      if (!gradient) {
        int& next = next_send[static_cast<std::size_t>(channel)];
        mine = std::min(mine, expected.place(rank_of(program, a->stage + 1), next));
        next = expected.end_of_forward(a->stage, a->microbatch);
      }
      bound = mine;
    }
  return deadlines;
}

void require_in_range(Program const& program) {
  auto const size = [](auto const& v) { return static_cast<int>(v.size()); };
  P3D_REQUIRE(program.num_microbatches >= 1, "a program has microbatches");
  P3D_REQUIRE(size(program.stage_rank) == program.num_stages, "every stage has a rank");
  P3D_REQUIRE(size(program.ranks) == program.num_ranks, "every rank has a list of actions");
  for (int rank : program.stage_rank)
    P3D_REQUIRE(rank >= 0 && rank < program.num_ranks, "stages live on existing ranks");
  for (int rank = 0; rank < program.num_ranks; ++rank)
    for (Action const& a : program.ranks[static_cast<std::size_t>(rank)]) {
      if (a.op == Op::optimizer_step) continue;
      P3D_REQUIRE(a.stage >= 0 && a.stage < program.num_stages, "actions name existing stages");
      P3D_REQUIRE(rank_of(program, a.stage) == rank, "actions are listed on the rank of their stage");
      P3D_REQUIRE(!has_microbatch(a.op) || (a.microbatch >= 0 && a.microbatch < program.num_microbatches),
                  "actions name existing microbatches");
    }
}

}  // namespace p3d::schedule
