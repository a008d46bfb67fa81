// SPDX-License-Identifier: Apache-2.0
// The weights of each stage, followed through the list of its rank: no other rank has a say in them. There is one state
// of a stage, which its actions change. The validator asks before each action whether the state allows it; the peak of
// memory counts the versions in it. Example: after "0GATHER" version 0 of stage 0 is present, and "0F0" may read it.

#include <p3d/schedule/weights.hpp>

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "channels.hpp"
#include "validator.hpp"

namespace p3d::schedule {
namespace {

constexpr bool brings_weights(Op op) { return op == Op::gather_weights || op == Op::reload_weights; }
constexpr bool drops_weights(Op op) { return op == Op::release_weights || op == Op::offload_weights; }

bool has(std::vector<int> const& versions, int version) {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}

/// The weights and the gradients of a stage at a place in the list of its rank.
struct StageState {
  explicit StageState(WeightHome h) : home(h) {
    if (home == WeightHome::resident) present = {0};
    if (home == WeightHome::offloaded) offloaded = {0};
  }

  WeightHome home;
  int newest = 0;                   ///< the version that the last update made
  std::vector<int> present = {};    ///< versions that can be read
  std::vector<int> offloaded = {};  ///< versions that lie elsewhere
  int pending = 0;                  ///< weight gradients that were not reduced
  int reduced = 0;                  ///< weight gradients that were reduced since the last update
  bool steps_alone = false;         ///< the stage has STEPs of its own
  bool scattered = false;           ///< the stage had a REDUCE_SCATTER

  /// True when the newest version is where an update, and the end of the program, want it.
  bool is_home() const {
    return home == WeightHome::sharded || has(home == WeightHome::resident ? present : offloaded, newest);
  }
};

/// The states of all stages. apply() follows the lists of the ranks, one after the other, and refuses nothing.
class WeightStates {
public:
  explicit WeightStates(Program const& program) : program_(program) {
    for (auto home : weight_homes(program)) stages_.emplace_back(home);
    for (auto const& actions : program.ranks)
      for (Action const& a : actions)
        if (a.op == Op::stage_step) stages_[at(a.stage)].steps_alone = true;
  }

  StageState const& of(int stage) const { return stages_[at(stage)]; }

  /// Goes to the begin of a rank's list.
  void begin(int rank) {
    last_mention_.clear();
    auto const& actions = program_.ranks[at(rank)];
    if (std::none_of(actions.begin(), actions.end(), [](Action const& a) { return a.op == Op::stage_step; })) return;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (reads_weights(a.op) || moves_weights(a.op)) last_mention_[{a.stage, a.version}] = i;
      if (int const lent = lender(program_, a.stage); reads_weights(a.op) && lent >= 0)
        last_mention_[{lent, a.version}] = i;
    }
  }

  /// The state after action `index` of the rank.
  void apply(std::size_t index, Action const& a) {
    if (a.op == Op::optimizer_step) return;
    auto& s = stages_[at(a.stage)];
    if (makes_weight_gradient(a.op) || makes_vocabulary_gradient(a.op)) ++s.pending;
    if (int const lent = lender(program_, a.stage); makes_weight_gradient(a.op) && lent >= 0)
      ++stages_[at(lent)].pending;
    if (drops_weights(a.op)) std::erase(s.present, a.version);
    if (a.op == Op::offload_weights) s.offloaded.push_back(a.version);
    if (a.op == Op::reload_weights) std::erase(s.offloaded, a.version);
    if (brings_weights(a.op)) s.present.push_back(a.version);
    if (reduces(a.op)) s.reduced += std::exchange(s.pending, 0);
    s.scattered = s.scattered || a.op == Op::reduce_scatter_gradients;
    if (a.op == Op::stage_step) update(index, s, a.stage);
  }

private:
  /// An update writes the newest version over the one before, but keeps one that a later action names.
  void update(std::size_t index, StageState& s, int stage) {
    s.reduced = 0;
    int const older = s.newest++;
    if (s.home == WeightHome::sharded) return;
    auto& versions = s.home == WeightHome::offloaded ? s.offloaded : s.present;
    auto const mention = last_mention_.find({stage, older});
    if (mention == last_mention_.end() || mention->second < index) std::erase(versions, older);
    versions.push_back(s.newest);
  }

  Program const& program_;
  std::vector<StageState> stages_;
  std::map<std::pair<int, int>, std::size_t> last_mention_;  ///< the last action that names a (stage, version)
};

class WeightCheck {
public:
  WeightCheck(Program const& program, Pass pass)
      : program_(program),
        training_(pass == Pass::training),
        states_(program),
        version_of_(at(program.num_stages) * at(program.num_microbatches), -1),
        stages_of_(program.ranks.size()) {
    for (int s = 0; s < program.num_stages; ++s) stages_of_[at(rank_of(program, s))].push_back(s);
  }

  /// The first error.
  std::vector<Violation> check() {
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      auto const& actions = program_.ranks[at(rank)];
      states_.begin(rank);
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (auto why = refusal(rank, actions[i]); !why.empty()) return {{rank, static_cast<int>(i), std::move(why)}};
        states_.apply(i, actions[i]);
      }
      for (int stage : stages_of_[at(rank)])
        if (auto why = refusal_at_end(stage, states_.of(stage)); !why.empty()) return {{rank, -1, std::move(why)}};
    }
    return {};
  }

private:
  /// Why the states of its rank's stages do not allow an action; "": they do.
  std::string refusal(int rank, Action const& a) {
    if (a.op == Op::optimizer_step) {
      for (int stage : stages_of_[at(rank)]) {
        auto const& s = states_.of(stage);
        if (auto why = refusal_of_update(stage, s.scattered && s.pending > 0); !why.empty()) return why;
      }
      return {};
    }
    auto const& s = states_.of(a.stage);
    bool const there = has(s.present, a.version);
    if (is_compute(a.op)) {
      int& version = version_of_[cell(program_, a.stage, a.microbatch)];
      if (a.op == Op::forward) version = a.version;
      if (version >= 0 && version != a.version)
        return fmt::format("runs with version {} of the weights, but {} ran with version {}", a.version,
                           to_string({Op::forward, a.stage, a.microbatch, -1, version}), version);
    }
    if ((reads_weights(a.op) || drops_weights(a.op)) && !there) return absent(a.stage, a.version);
    if (int const lent = lender(program_, a.stage); is_compute(a.op) && reads_weights(a.op) && lent >= 0)
      if (!has(states_.of(lent).present, a.version)) return absent(lent, a.version);
    // One REDUCE and one STEP for the rank: check_progress() says when.
    if (reduces(a.op) && (s.steps_alone || a.op == Op::reduce_scatter_gradients) && s.pending == 0)
      return fmt::format("stage {} has no gradients that were not reduced yet", a.stage);
    if (a.op == Op::gather_weights) {
      if (s.home != WeightHome::sharded)
        return fmt::format("stage {} has its weights whole: there is nothing to gather", a.stage);
      if (there) return fmt::format("the weights of stage {} are whole already", a.stage);
      if (a.version != s.newest)
        return fmt::format("the parts of the weights of stage {} are of version {}", a.stage, s.newest);
    }
    if (a.op == Op::release_weights && s.home != WeightHome::sharded && a.version == s.newest)
      return fmt::format("nothing else holds version {} of the weights of stage {}", a.version, a.stage);
    if (a.op == Op::reload_weights && !has(s.offloaded, a.version))
      return fmt::format("version {} of the weights of stage {} is not offloaded", a.version, a.stage);
    if (a.op != Op::stage_step) return {};
    if (a.version != s.newest + 1)
      return fmt::format("makes version {} of the weights of stage {}, whose newest is {}", a.version, a.stage,
                         s.newest);
    if (s.pending + s.reduced == 0) return fmt::format("STEP of stage {} without new gradients", a.stage);
    return refusal_of_update(a.stage, s.pending > 0);
  }

  /// Why a version cannot be read, and what would bring it.
  std::string absent(int stage, int version) const {
    auto const& s = states_.of(stage);
    auto const fix = [&](Op op) { return to_string({op, stage, -1, -1, version}); };
    if (version > s.newest) return fmt::format("version {} of the weights of stage {} is not made yet", version, stage);
    if (has(s.offloaded, version))
      return fmt::format("the weights of stage {} are offloaded: {} has to come first", stage, fix(Op::reload_weights));
    if (s.home == WeightHome::sharded && version == s.newest)
      return fmt::format("the weights of stage {} are in parts: {} has to come first", stage, fix(Op::gather_weights));
    return fmt::format("version {} of the weights of stage {} is gone: released, or overwritten by an update", version,
                       stage);
  }

  /// Why an update of a stage comes too early; `unreduced`: it has gradients that were not reduced.
  std::string refusal_of_update(int stage, bool unreduced) const {
    if (unreduced) return fmt::format("STEP before the last gradients of stage {} are reduced", stage);
    if (states_.of(stage).is_home()) return {};
    return fmt::format("STEP updates the weights of stage {}, which are not in their place", stage);
  }
  /// Why the program could not run again.
  std::string refusal_at_end(int stage, StageState const& s) const {
    if (training_ && s.steps_alone && (s.pending > 0 || s.reduced > 0))
      return fmt::format("stage {} ends with gradients that no STEP has used", stage);
    for (int version : s.present)
      if (s.home != WeightHome::resident || version != s.newest)
        return fmt::format("version {} of the weights of stage {} stays at the end: {} is missing", version, stage,
                           to_string({s.home == WeightHome::offloaded && version == s.newest ? Op::offload_weights
                                                                                             : Op::release_weights,
                                      stage, -1, -1, version}));
    for (int version : s.offloaded)
      if (s.home != WeightHome::offloaded || version != s.newest)
        return fmt::format("the weights of stage {} are offloaded at the end: {} is missing", stage,
                           to_string({Op::reload_weights, stage, -1, -1, version}));
    return {};
  }

  Program const& program_;
  bool training_;
  WeightStates states_;
  std::vector<int> version_of_;              ///< the version that F of a cell ran with, -1: it did not run yet
  std::vector<std::vector<int>> stages_of_;  ///< the stages of each rank
};

}  // namespace

std::vector<WeightHome> weight_homes(Program const& program) {
  std::vector<WeightHome> homes(at(program.num_stages), WeightHome::resident);
  std::vector<bool> known(homes.size(), false);
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) {
      if (!moves_weights(a.op) || known[at(a.stage)]) continue;
      known[at(a.stage)] = true;
      if (a.op == Op::gather_weights) homes[at(a.stage)] = WeightHome::sharded;
      if (a.op == Op::reload_weights) homes[at(a.stage)] = WeightHome::offloaded;
    }
  return homes;
}

std::vector<Violation> check_weights(Program const& program, Pass pass) {
  // In most programs weights never move and have one version: nothing can be wrong with them.
  auto const matters = [](Action const& a) {
    return a.version != 0 || moves_weights(a.op) || a.op == Op::reduce_scatter_gradients || a.op == Op::stage_step;
  };
  for (auto const& actions : program.ranks)
    if (std::any_of(actions.begin(), actions.end(), matters)) return WeightCheck(program, pass).check();
  return {};
}

std::vector<double> peak_weight_bytes(Program const& program, std::vector<double> const& stage_bytes) {
  WeightStates states(program);
  auto const bytes = [&](int stage) {
    return static_cast<double>(states.of(stage).present.size()) * stage_bytes[at(stage)];
  };
  std::vector<double> peaks(program.ranks.size(), 0.0);
  for (int s = 0; s < program.num_stages; ++s) peaks[at(rank_of(program, s))] += bytes(s);
  for (int rank = 0; rank < program.num_ranks; ++rank) {
    states.begin(rank);
    auto const& actions = program.ranks[at(rank)];
    double now = peaks[at(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (!moves_weights(a.op) && a.op != Op::stage_step) continue;
      now -= bytes(a.stage);
      states.apply(i, a);
      now += bytes(a.stage);
      peaks[at(rank)] = std::max(peaks[at(rank)], now);
    }
  }
  return peaks;
}

namespace {

/// The intervals of each stage, from an action for which `begins` holds to the next one for which `ends` does. What a
/// compute action begins, it begins for the stage, too, whose weights it borrows.
std::vector<std::vector<LiveInterval>> live_intervals(Program const& program, std::optional<int> rank,
                                                      bool (*begins)(Op), bool (*ends)(Op)) {
  std::vector<std::vector<LiveInterval>> out(at(program.num_stages));
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    if (rank && at(*rank) != r) continue;
    auto const& actions = program.ranks[r];
    std::vector<bool> live(out.size(), false);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (a.op == Op::optimizer_step) continue;
      for (int stage : {a.stage, is_compute(a.op) ? lender(program, a.stage) : -1}) {
        if (stage < 0 || !begins(a.op) || live[at(stage)]) continue;
        out[at(stage)].push_back({i, actions.size()});
        live[at(stage)] = true;
      }
      if (!ends(a.op) || !live[at(a.stage)]) continue;
      out[at(a.stage)].back().end = i;
      live[at(a.stage)] = false;
    }
  }
  return out;
}

}  // namespace

std::vector<std::vector<LiveInterval>> whole_weights(Program const& program, std::optional<int> rank) {
  return live_intervals(program, rank, brings_weights, drops_weights);
}

std::vector<std::vector<LiveInterval>> whole_gradients(Program const& program, std::optional<int> rank) {
  return live_intervals(
      program, rank,
      [](Op op) { return makes_input_gradient(op) || makes_weight_gradient(op) || makes_vocabulary_gradient(op); },
      reduces);
}

bool meet(std::vector<LiveInterval> const& a, std::vector<LiveInterval> const& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (x->begin <= y->end && y->begin <= x->end) return true;
    x->end < y->end ? ++x : ++y;
  }
  return false;
}

}  // namespace p3d::schedule
