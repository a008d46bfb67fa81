// SPDX-License-Identifier: Apache-2.0
// The offload pass. It works on one rank at a time: it finds where each stage's microbatches are used, between which
// uses a microbatch is offloaded, and when it takes a slot again. Example: with two resident microbatches
// "0F0 0F1 0F2 0B0" gets 0OFFLOAD_F0 behind 0F0 and 0RELOAD_F0 before 0B0, as two others are used between these.

#include <p3d/schedule/offload.hpp>

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "channels.hpp"

namespace p3d::schedule {
namespace {

/// Actions in a row, of those that touch the slots of a stage, that are for one microbatch.
struct Use {
  int microbatch = 0;
  int first = 0, last = 0;  ///< actions of the rank
};

/// A microbatch in one slot, from before action `take` until after action `end`.
struct Residency {
  int microbatch = 0;
  int first = 0, end = 0;
  int last_use = 0;  ///< in the list of uses
  int earliest = 0;  ///< action before which the slot may be taken at the earliest
  int take = 0;
  int slot = 0;
  bool returns = false;  ///< begins with RELOAD_F
  bool leaves = false;   ///< ends with OFFLOAD_F
};

/// The residencies of one stage; empty where nothing is offloaded.
struct StageResidencies {
  std::vector<Residency> all;
  std::vector<std::vector<std::size_t>> of;  ///< residencies of each microbatch, in order
  /// The residency of a microbatch that contains an action.
  Residency& at(int microbatch, int action) {
    auto const& list = of[static_cast<std::size_t>(microbatch)];
    for (std::size_t k : list)
      if (action <= all[k].end) return all[k];
    return all[list.back()];
  }
};

class RankPass {
public:
  RankPass(Program const& program, int rank, std::vector<int> const& resident, bool defers, Channels const& channels)
      : program_(program),
        actions_(program.ranks[static_cast<std::size_t>(rank)]),
        resident_(resident),
        defers_(defers),
        channels_(channels),
        residencies_(static_cast<std::size_t>(program.num_stages)) {}

  /// The new list; sets num_slots of the rank's stages. False: nothing is offloaded.
  bool run(std::vector<Action>& out, std::vector<int>& num_slots) {
    find_residencies();
    place_receives();
    bool any = false;
    for (std::size_t s = 0; s < residencies_.size(); ++s) {
      if (residencies_[s].all.empty()) continue;
      keep_what_is_wanted_early(residencies_[s]);
      any = any || std::any_of(residencies_[s].all.begin(), residencies_[s].all.end(),
                               [](Residency const& x) { return x.leaves; });
      num_slots[s] = assign(residencies_[s]);
    }
    if (any) write(out);
    return any;
  }

private:
  int size() const { return static_cast<int>(actions_.size()); }
  Action const& action(int i) const { return actions_[static_cast<std::size_t>(i)]; }
  StageResidencies& residencies(int stage) { return residencies_[static_cast<std::size_t>(stage)]; }

  void find_residencies() {
    std::vector<std::vector<Use>> uses(residencies_.size());
    for (int i = 0; i < size(); ++i) {
      Action const& a = action(i);
      P3D_REQUIRE(!moves_activations(a.op), "activations are offloaded once");
      if (a.microbatch < 0 || is_recv(a.op)) continue;
      auto const touch = [&](int stage) {
        auto& list = uses[static_cast<std::size_t>(stage)];
        if (list.empty() || list.back().microbatch != a.microbatch) list.push_back({a.microbatch, i, i});
        list.back().last = i;
      };
      touch(a.stage);
      for_slots_in_use(program_, a, touch);
    }
    for (std::size_t s = 0; s < uses.size(); ++s)
      if (program_.num_slots[s] > resident_[s]) divide(uses[s], resident_[s], residencies_[s]);
  }

  /// A microbatch is offloaded while it is not among the next `resident` to be used.
  void divide(std::vector<Use> const& uses, int resident, StageResidencies& stage) const {
    stage.of.resize(static_cast<std::size_t>(program_.num_microbatches));
    for (int k = 0; k < static_cast<int>(uses.size()); ++k) {
      Use const& use = uses[static_cast<std::size_t>(k)];
      auto& list = stage.of[static_cast<std::size_t>(use.microbatch)];
      if (!list.empty() && k - stage.all[list.back()].last_use <= resident) {
        auto& residency = stage.all[list.back()];
        std::tie(residency.end, residency.last_use) = std::pair(use.last, k);
        continue;
      }
      Residency residency{use.microbatch, use.first, use.last, k};
      if (k >= resident) residency.earliest = uses[static_cast<std::size_t>(k - resident)].last + 1;
      residency.returns = !list.empty();
      if (!residency.returns && !defers_ && k > 0) residency.earliest = uses[static_cast<std::size_t>(k - 1)].last + 1;
      if (residency.returns) stage.all[list.back()].leaves = true;
      list.push_back(stage.all.size());
      stage.all.push_back(residency);
    }
  }

  /// Finds the place of each receive: not before its slot is taken, but before its use and in the order of its channel.
  void place_receives() {
    std::map<std::pair<int, int>, int> forward, backward;  // F, and B or I, of a (stage, microbatch)
    for (int i = 0; i < size(); ++i) {
      Action const& a = action(i);
      if (a.op == Op::forward) forward[{a.stage, a.microbatch}] = i;
      if (makes_input_gradient(a.op)) backward[{a.stage, a.microbatch}] = i;
    }
    std::vector<int> place(actions_.size(), -1), bound(channels_.all.size(), size()), after(channels_.all.size(), 0);
    std::vector<int> latest(actions_.size(), 0);
    for (int i = size(); i-- > 0;) {
      Action const& a = action(i);
      if (!is_recv(a.op)) continue;
      auto& limit = bound[static_cast<std::size_t>(channels_.of(a))];
      limit = std::min(limit, (a.op == Op::recv_activation ? forward : backward).at({a.stage, a.microbatch}));
      latest[static_cast<std::size_t>(i)] = limit;
    }
    receives_.resize(actions_.size());
    for (int i = 0; i < size(); ++i) {
      Action const& a = action(i);
      if (!is_recv(a.op)) continue;
      auto& earliest = after[static_cast<std::size_t>(channels_.of(a))];
      int const limit = latest[static_cast<std::size_t>(i)];
      earliest = std::max(earliest, i);
      if (!residencies(a.stage).all.empty()) {
        int const use = (a.op == Op::recv_activation ? forward : backward).at({a.stage, a.microbatch});
        auto& residency = residencies(a.stage).at(a.microbatch, use);
        earliest = std::min(std::max(earliest, residency.earliest), limit);
        residency.earliest = std::min(residency.earliest, earliest);
        if (a.op == Op::recv_activation) residency.first = std::min(residency.first, earliest);
      }
      earliest = std::min(earliest, limit);
      receives_[static_cast<std::size_t>(earliest)].push_back(i);
    }
  }

  /// A microbatch that must come back before it has left remains in its slot.
  static void keep_what_is_wanted_early(StageResidencies& stage) {
    for (auto& list : stage.of)
      for (std::size_t n = 1; n < list.size();) {
        auto& before = stage.all[list[n - 1]];
        auto& residency = stage.all[list[n]];
        if (residency.earliest > before.end) {
          ++n;
          continue;
        }
        before.end = residency.end;
        before.leaves = residency.leaves;
        residency.microbatch = -1;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(n));
      }
  }

  /// Gives the residencies as few slots as there are of them at a time, in turns: so a slot has been written out before
  /// it is taken again.
  static int assign(StageResidencies& stage) {
    std::vector<Residency*> order;
    for (auto& residency : stage.all) {
      if (residency.microbatch < 0) continue;
      residency.take = residency.returns ? residency.earliest : residency.first;
      order.push_back(&residency);
    }
    std::stable_sort(order.begin(), order.end(), [](auto const* a, auto const* b) { return a->take < b->take; });
    std::size_t count = 0;
    std::priority_queue<int, std::vector<int>, std::greater<>> ends;
    for (auto const* residency : order) {
      while (!ends.empty() && ends.top() < residency->take) ends.pop();
      ends.push(residency->end);
      count = std::max(count, ends.size());
    }
    using Last = std::pair<int, int>;  // (last action, slot)
    std::priority_queue<Last, std::vector<Last>, std::greater<>> slots;
    for (std::size_t k = 0; k < count; ++k) slots.emplace(-1, static_cast<int>(k));
    for (auto* residency : order) {
      residency->slot = slots.top().second;
      slots.pop();
      slots.emplace(residency->end, residency->slot);
    }
    return static_cast<int>(count);
  }

  void write(std::vector<Action>& out) {
    std::vector<std::vector<Action>> before(actions_.size()), after(actions_.size());
    std::vector<std::pair<int, Action>> reloads;  // with the place of the first use
    for (int s = program_.num_stages; s-- > 0;)
      for (auto const& residency : residencies(s).all) {
        if (residency.microbatch < 0) continue;
        Action const move{Op::offload_activations, s, residency.microbatch, residency.slot};
        if (residency.leaves) after[static_cast<std::size_t>(residency.end)].push_back(move);
        if (residency.returns) reloads.emplace_back(residency.first, move);
      }
    // The microbatch that is used first is read first.
    std::stable_sort(reloads.begin(), reloads.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
    for (auto& [first, a] : reloads) {
      a.op = Op::reload_activations;
      before[static_cast<std::size_t>(residencies(a.stage).at(a.microbatch, first).take)].push_back(a);
    }
    auto const with_slot = [&](Action a, int i) {
      if (a.microbatch >= 0 && !residencies(a.stage).all.empty())
        a.slot = residencies(a.stage).at(a.microbatch, i).slot;
      return a;
    };
    out.clear();
    for (int i = 0; i < size(); ++i) {
      auto const at = static_cast<std::size_t>(i);
      out.insert(out.end(), before[at].begin(), before[at].end());
      for (int r : receives_[at]) out.push_back(with_slot(action(r), i));
      if (!is_recv(action(i).op)) out.push_back(with_slot(action(i), i));
      out.insert(out.end(), after[at].begin(), after[at].end());
    }
  }

  Program const& program_;
  std::vector<Action> const& actions_;
  std::vector<int> const& resident_;  ///< microbatches of each stage that remain in slots
  bool defers_;
  Channels const& channels_;
  std::vector<StageResidencies> residencies_;  ///< residencies of each stage
  std::vector<std::vector<int>> receives_;     ///< receives that are posted at each place
};

/// False: nothing is offloaded.
bool offload(Program& program, std::vector<int> const& resident, bool defers) {
  Program const before = program;
  Channels const channels(before);
  bool any = false;
  for (int r = 0; r < program.num_ranks; ++r) {
    std::vector<Action> list;
    auto slots = before.num_slots;
    if (!RankPass(before, r, resident, defers, channels).run(list, slots)) continue;
    any = true;
    program.ranks[static_cast<std::size_t>(r)] = std::move(list);
    for (int s = 0; s < program.num_stages; ++s)
      if (rank_of(program, s) == r) program.num_slots[static_cast<std::size_t>(s)] = slots[static_cast<std::size_t>(s)];
  }
  return any;
}

}  // namespace

void offload_activations(Program& program, int resident, Execution execution) {
  P3D_REQUIRE(resident >= 2, "one microbatch is computed and one is on its way");
  P3D_REQUIRE(program.num_slots.size() == static_cast<std::size_t>(program.num_stages), "the program is complete");
  require_in_range(program);
  auto const stages = program.num_slots.size();
  std::optional<Program> best;
  auto const slots = [](Program const& p) { return std::accumulate(p.num_slots.begin(), p.num_slots.end(), 0); };
  // False: it does not run, or takes no fewer slots than the best one.
  auto const better = [&](std::vector<int> const& by_stage, bool early) {
    Program tried = program;
    offload(tried, by_stage, early);
    if ((best && slots(tried) >= slots(*best)) || !validate(tried, execution).empty()) return false;
    best = std::move(tried);
    return true;
  };
  int most = resident;
  bool const defers = !execution.waits_inside;
  bool early = defers;
  for (int const end = *std::max_element(program.num_slots.begin(), program.num_slots.end()); most < end; ++most) {
    std::vector<int> const all(stages, most);
    if (defers && better(all, true) &&
        std::all_of(best->num_slots.begin(), best->num_slots.end(), [&](int n) { return n <= most; }))
      break;
    if (better(all, false)) early = false;
    if (best) break;
  }
  if (!best) return;
  // Where some stages need more than others, the others get less.
  std::size_t actions = 0;
  for (auto const& list : program.ranks) actions += list.size();
  constexpr std::size_t most_work = 2'000'000;  // a second or two
  std::vector<int> by_stage(stages, most);
  for (std::size_t s = 0; s < stages && stages * actions <= most_work; ++s)
    for (int fewer = resident; fewer < most && best->num_slots[s] > fewer; ++fewer) {
      by_stage[s] = fewer;
      if (better(by_stage, early)) break;
      by_stage[s] = most;
    }
  program = std::move(*best);
}

std::vector<bool> moves_gradients(Program const& program, int rank) {
  auto const& actions = program.ranks[static_cast<std::size_t>(rank)];
  std::vector<bool> out(actions.size(), false);
  if (std::none_of(actions.begin(), actions.end(), [](Action const& a) { return moves_activations(a.op); })) return out;
  std::set<std::pair<int, int>> input_part_ran;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Action const& a = actions[i];
    if (makes_input_gradient(a.op)) input_part_ran.insert({a.stage, a.microbatch});
    if (moves_activations(a.op)) out[i] = input_part_ran.contains({a.stage, a.microbatch});
  }
  return out;
}

std::vector<OffloadedActivations> offloaded_activations(Program const& program) {
  require_in_range(program);
  std::vector<OffloadedActivations> out(static_cast<std::size_t>(program.num_stages));
  std::vector<int> now(out.size(), 0);
  for (int r = 0; r < program.num_ranks; ++r) {
    auto const& actions = program.ranks[static_cast<std::size_t>(r)];
    auto const gradients = moves_gradients(program, r);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (!moves_activations(a.op)) continue;
      auto const s = static_cast<std::size_t>(a.stage);
      now[s] += a.op == Op::offload_activations ? 1 : -1;
      out[s].places = std::max(out[s].places, now[s]);
      out[s].with_gradients = out[s].with_gradients || gradients[i];
    }
  }
  return out;
}

}  // namespace p3d::schedule
