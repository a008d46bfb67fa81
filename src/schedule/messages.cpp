// SPDX-License-Identifier: Apache-2.0
// The message pass: sends directly after the action that makes the data, receives ahead of their use. Example: on the
// second of two ranks "1F0@0 1B0@0" becomes "1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0".

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <algorithm>

namespace p3d::schedule {
namespace {

/// The first position of each cell at which a receive may be posted without a slot in use being touched.
struct Earliest {
  std::vector<int> activation;  ///< after the last action of the slot's previous user
  std::vector<int> gradient;    ///< after the forward that took the slot
};

Earliest earliest_receives(Program const& program) {
  auto const cells = static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches);
  Earliest earliest{std::vector<int>(cells, 0), std::vector<int>(cells, 0)};
  std::vector<int> last(cells, -1);
  std::vector<std::vector<int>> free_from(static_cast<std::size_t>(program.num_stages));
  for (std::size_t s = 0; s < program.num_slots.size(); ++s)
    free_from[s].assign(static_cast<std::size_t>(program.num_slots[s]), 0);
  auto const mark_last = [&](Action const& a, int i) {
    last[cell(program, a.stage, a.microbatch)] = i;
    for_shared_slots(program, a, [&](int stage) {
      int& end = last[cell(program, stage, a.microbatch)];
      end = std::max(end, i);
    });
  };
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (!is_vocabulary(actions[i].op)) mark_last(actions[i], static_cast<int>(i));
  std::vector<int> slot_of(cells, -1);
  auto const release = [&](int stage, int m, int i) {
    std::size_t const at = cell(program, stage, m);
    if (last[at] == i && slot_of[at] >= 0)
      free_from[static_cast<std::size_t>(stage)][static_cast<std::size_t>(slot_of[at])] = i + 1;
  };
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (is_vocabulary(a.op)) continue;
      std::size_t const at = cell(program, a.stage, a.microbatch);
      if (a.op == Op::forward) {
        earliest.gradient[at] = static_cast<int>(i) + 1;
        auto const& slots = free_from[static_cast<std::size_t>(a.stage)];
        if (a.slot >= 0 && static_cast<std::size_t>(a.slot) < slots.size()) {
          earliest.activation[at] = slots[static_cast<std::size_t>(a.slot)];
          slot_of[at] = a.slot;
        }
      }
      release(a.stage, a.microbatch, static_cast<int>(i));
      for_shared_slots(program, a, [&](int stage) { release(stage, a.microbatch, static_cast<int>(i)); });
    }
  return earliest;
}

/// True when this action of a rank makes a gradient that is then sent from this slot: whoever takes the slot at once
/// would wait for the whole message.
bool sends_from(Program const& program, int rank, int index, int stage, int slot) {
  if (index < 0) return false;
  Action const& a = program.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  return makes_input_gradient(a.op) && a.stage == stage && a.slot == slot;
}

}  // namespace

void add_messages(Program& program, int receives_ahead, int gradients_ahead) {
  require_in_range(program);
  add_messages(program, receives_ahead, gradients_ahead, ReceiveTimes(program));
}

void add_messages(Program& program, int receives_ahead, int gradients_ahead, ReceiveTimes const& times) {
  P3D_REQUIRE(receives_ahead >= 0 && gradients_ahead >= 0, "receives are posted before their use");
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) P3D_REQUIRE(computes(a.op), "messages are added to compute actions only, once");
  Channels const& channels = times.channels;
  ExpectedTimes const& expected = times.expected;
  Deadlines const& deadline = times.deadlines;
  Earliest const earliest = earliest_receives(program);

  // The receives of each rank, with their positions. Walking the senders in order keeps the order of every channel.
  struct Receive {
    int position;
    Action action;
  };
  std::vector<std::vector<Receive>> receives(program.ranks.size());
  std::vector<int> posted(channels.all.size(), 0);
  std::vector<int> use_f(deadline.activation.size(), 0), use_b(use_f), slot(use_f.size(), -1);
  for (auto const& actions : program.ranks)
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (is_vocabulary(a.op)) continue;
      std::size_t const at = cell(program, a.stage, a.microbatch);
      if (a.op == Op::forward) use_f[at] = static_cast<int>(i);
      if (makes_input_gradient(a.op)) use_b[at] = static_cast<int>(i);
      slot[at] = a.slot;
    }
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) {
      bool const gradient = makes_input_gradient(a.op);
      if (!gradient && a.op != Op::forward) continue;
      int const channel =
          (gradient ? channels.gradient_out : channels.activation_out)[static_cast<std::size_t>(a.stage)];
      if (channel < 0) continue;
      int const stage = gradient ? a.stage - 1 : a.stage + 1;
      std::size_t const at = cell(program, stage, a.microbatch);
      // An activation: where its data should come, or so many actions before its use, but not while its slot is in use.
      // A gradient: when its buffer is there; posted late, ranks could wait in a circle, each to take a slot whose
      // gradient the other has not asked for.
      int const rank = rank_of(program, stage);
      auto const wanted = [&] {
        return std::min(use_f[at] - receives_ahead,
                        expected.place(rank, expected.end_of_forward(stage - 1, a.microbatch)));
      };
      int early = gradient ? std::max(earliest.gradient[at], use_b[at] - gradients_ahead)
                           : std::max(earliest.activation[at], wanted());
      if (!gradient && early < use_f[at] - receives_ahead && sends_from(program, rank, early - 1, stage, slot[at]))
        ++early;
      int& previous = posted[static_cast<std::size_t>(channel)];
      previous = std::min(std::max(early, previous), (gradient ? deadline.gradient : deadline.activation)[at]);
      receives[static_cast<std::size_t>(rank)].push_back(
          {previous, {gradient ? Op::recv_gradient : Op::recv_activation, stage, a.microbatch, slot[at]}});
    }

  std::vector<Action> merged;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    auto& list = receives[rank];
    // Stable: messages of one channel stay in order, as their positions never decrease.
    std::stable_sort(list.begin(), list.end(),
                     [](Receive const& a, Receive const& b) { return a.position < b.position; });
    auto& actions = program.ranks[rank];
    merged.clear();
    merged.reserve(2 * actions.size() + list.size());
    auto next = list.begin();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      for (; next != list.end() && next->position <= static_cast<int>(i); ++next) merged.push_back(next->action);
      Action const& a = actions[i];
      merged.push_back(a);
      if (a.op == Op::forward && output_is_remote(program, a.stage))
        merged.push_back({Op::send_activation, a.stage, a.microbatch, a.slot});
      if (makes_input_gradient(a.op) && input_is_remote(program, a.stage))
        merged.push_back({Op::send_gradient, a.stage, a.microbatch, a.slot});
    }
    actions = merged;
  }
}

}  // namespace p3d::schedule
