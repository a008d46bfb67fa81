// SPDX-License-Identifier: Apache-2.0
// The passes that make weights come and go: what brings them stands before an action that reads them, and what drops
// them stands behind it, as in "0GATHER 0F0 0RELEASE".

#include <p3d/schedule/weights.hpp>

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <map>
#include <utility>

#include "channels.hpp"

namespace p3d::schedule {
namespace {

/// Puts around the readers of each stage that is not resident what brings its weights and what drops them: around
/// all of them (`once`), or around those that follow each other among the readers of the rank's list. What brings
/// weights goes `ahead(stage, reader before)` readers ahead of its own, but never ahead of another reader of the stage,
/// where they are whole, or released a moment later.
template <class Ahead>
void move_weights(Program const& program, std::vector<Action>& actions, std::vector<WeightHome> const& homes, bool once,
                  Ahead const& ahead) {
  std::vector<std::size_t> readers;
  std::map<int, std::vector<std::size_t>> places;  // of the readers of a stage, among all readers
  for (std::size_t i = 0; i < actions.size(); ++i) {
    P3D_REQUIRE(!moves_weights(actions[i].op), "weight actions are added once");
    if (!reads_weights(actions[i].op)) continue;
    int const own = actions[i].stage, lent = lender(program, own);
    for (int stage : {own, lent == own ? -1 : lent})
      if (stage >= 0 && homes[at(stage)] != WeightHome::resident) places[stage].push_back(readers.size());
    readers.push_back(i);
  }
  std::vector<std::vector<Action>> before(actions.size()), after(actions.size());
  for (auto const& [stage, list] : places) {
    bool const sharded = homes[at(stage)] == WeightHome::sharded;
    for (std::size_t n = 0; n < list.size(); ++n) {
      std::size_t const place = list[n], earliest = n == 0 ? 0 : list[n - 1] + 1;
      if (n == 0 || (!once && place != earliest)) {
        std::size_t const most = place == 0 ? 0 : ahead(stage, actions[readers[place - 1]]);
        before[readers[place - std::min(most, place - earliest)]].push_back(
            {sharded ? Op::gather_weights : Op::reload_weights, stage});
      }
      if (n + 1 == list.size() || (!once && list[n + 1] != place + 1))
        after[readers[place]].push_back({sharded ? Op::release_weights : Op::offload_weights, stage});
    }
  }
  std::vector<Action> merged;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    merged.insert(merged.end(), before[i].begin(), before[i].end());
    merged.push_back(actions[i]);
    merged.insert(merged.end(), after[i].begin(), after[i].end());
  }
  actions = std::move(merged);
}

/// Puts REDUCE_SCATTER in place of each stage's REDUCE, or behind each B or W of the stage. T and G add to the next sum
/// of the rank's first stage, and what follows its last B or W to the last one.
void scatter_gradients(std::vector<Action>& actions, Every every) {
  std::map<int, std::size_t> last_backward, last;  // by stage: its last B or W; its last B, W, T or G
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (makes_weight_gradient(actions[i].op)) last_backward[actions[i].stage] = last[actions[i].stage] = i;
    if (makes_vocabulary_gradient(actions[i].op)) last[actions[i].stage] = i;
  }
  // The last sum waits for all that adds to it.
  auto const ends_microbatch = [&](std::size_t i) {
    Action const& a = actions[i];
    if (makes_weight_gradient(a.op) && last_backward.at(a.stage) != i) return true;
    auto const end = last.find(a.stage);
    return end != last.end() && end->second == i;
  };
  std::vector<Action> out;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Action const& a = actions[i];
    bool const replaced = a.op == Op::reduce_gradients;
    if (!replaced) out.push_back(a);
    if (every == Every::step ? replaced : ends_microbatch(i)) out.push_back({Op::reduce_scatter_gradients, a.stage});
  }
  actions = std::move(out);
}

}  // namespace

void shard_weights(Program& program, Sharding const& sharding) {
  require_in_range(program);
  std::vector<WeightHome> const homes(at(program.num_stages),
                                      sharding.offloads ? WeightHome::offloaded : WeightHome::sharded);
  for (auto& actions : program.ranks) {
    if (!sharding.offloads) scatter_gradients(actions, sharding.reduce);
    move_weights(program, actions, homes, sharding.gather == Every::step,
                 [&](int, Action const&) { return at(sharding.ahead); });
  }
}

void bring_weights(Program& program, Program const& training) {
  P3D_REQUIRE(program.stage_rank == training.stage_rank, "both programs have the same stages");
  auto const homes = weight_homes(training);
  if (std::all_of(homes.begin(), homes.end(), [](auto h) { return h == WeightHome::resident; })) return;
  auto const whole = whole_weights(training);
  bool const once =
      std::all_of(whole.begin(), whole.end(), [](auto const& intervals) { return intervals.size() <= 1; });
  std::map<std::pair<int, int>, bool> known;
  // Two stages whose whole weights lie beside each other in training: no more memory is needed for both.
  auto const together = [&](int a, int b) {
    auto const [it, added] = known.try_emplace({a, b}, false);
    if (added) it->second = meet(whole[at(a)], whole[at(b)]);
    return it->second;
  };
  for (auto& actions : program.ranks) {
    move_weights(program, actions, homes, once, [&](int stage, Action const& reader) {
      for (int other : {reader.stage, lender(program, reader.stage)})
        if (other >= 0 && homes[at(other)] != WeightHome::resident && !together(stage, other)) return std::size_t{0};
      return std::size_t{1};
    });
  }
}

}  // namespace p3d::schedule
