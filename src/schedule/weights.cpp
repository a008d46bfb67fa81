// SPDX-License-Identifier: Apache-2.0
// The weights of each stage, followed through the list of its rank: no other rank has a say in them.

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

/// By (stage, version): the last action of a rank that names it.
std::map<std::pair<int, int>, std::size_t> last_mentions(Program const& program, std::vector<Action> const& actions) {
  std::map<std::pair<int, int>, std::size_t> last;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Action const& a = actions[i];
    if (reads_weights(a.op) || moves_weights(a.op)) last[{a.stage, a.version}] = i;
    if (int const other = lender(program, a.stage); reads_weights(a.op) && other >= 0) last[{other, a.version}] = i;
  }
  return last;
}

bool has(std::vector<int> const& versions, int version) {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}
void drop(std::vector<int>& versions, int version) { std::erase(versions, version); }

/// What is known of one stage at a place in the list of its rank.
struct StageWeights {
  WeightHome home = WeightHome::resident;
  bool steps_alone = false;  ///< it has STEPs of its own
  bool scattered = false;    ///< it had a REDUCE_SCATTER
  int newest = 0;
  std::vector<int> present;  ///< versions that can be read
  std::vector<int> away;     ///< versions that OFFLOAD took, or that begin there
  int pending = 0;           ///< weight gradients that were not reduced
  int reduced = 0;           ///< and those that were, since the last update

  explicit StageWeights(WeightHome h = WeightHome::resident) : home(h) {
    if (home == WeightHome::resident) present = {0};
    if (home == WeightHome::offloaded) away = {0};
  }

  /// Where the newest version has to be when it is updated, and at the end.
  bool at_home() const {
    switch (home) {
      case WeightHome::resident: return has(present, newest);
      case WeightHome::sharded: return true;
      case WeightHome::offloaded: return has(away, newest);
    }
    return false;
  }

  void step(bool keep_older) {
    auto& there = home == WeightHome::offloaded ? away : present;
    if (home != WeightHome::sharded) {
      if (!keep_older) drop(there, newest);
      there.push_back(newest + 1);
    }
    ++newest;
  }
};

class WeightCheck {
public:
  WeightCheck(Program const& program, Pass pass)
      : program_(program),
        training_(pass == Pass::training),
        version_of_(static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches),
                    -1) {
    for (auto home : weight_homes(program)) stages_.emplace_back(home);
    stages_of_.resize(program.ranks.size());
    for (int s = 0; s < program.num_stages; ++s) stages_of_[static_cast<std::size_t>(rank_of(program, s))].push_back(s);
    for (auto const& actions : program.ranks)
      for (Action const& a : actions)
        if (a.op == Op::stage_step) stages_[static_cast<std::size_t>(a.stage)].steps_alone = true;
  }

  std::vector<Violation> check() {
    for (rank_ = 0; rank_ < program_.num_ranks; ++rank_) list();
    return std::move(found_);
  }

private:
  template <class... Args>
  void error(int index, fmt::format_string<Args...> text, Args&&... args) {
    if (found_.size() < max_violations)
      found_.push_back({rank_, index, fmt::format(text, std::forward<Args>(args)...)});
  }

  void list() {
    auto const& actions = program_.ranks[static_cast<std::size_t>(rank_)];
    auto const keeps = keeps_older_versions(program_, rank_);
    for (std::size_t i = 0; i < actions.size() && found_.empty(); ++i) {
      Action const& a = actions[i];
      int const index = static_cast<int>(i);
      if (a.op == Op::optimizer_step) {
        for (int s : stages_of_[static_cast<std::size_t>(rank_)]) rank_step(index, s);
        continue;
      }
      auto& s = stages_[static_cast<std::size_t>(a.stage)];
      if (is_compute(a.op)) compute(index, a, s);
      if (is_vocabulary(a.op) && reads_weights(a.op) && !has(s.present, a.version)) absent(index, a, s);
      if (makes_vocabulary_gradient(a.op)) ++s.pending;
      if (moves_weights(a.op)) move(index, a, s);
      if (reduces(a.op)) reduce(index, a, s);
      if (a.op == Op::stage_step) step(index, a, s, keeps[i]);
    }
    for (int s : stages_of_[static_cast<std::size_t>(rank_)])
      if (found_.empty()) end(s);
  }

  void compute(int index, Action const& a, StageWeights& s) {
    int& version = version_of_[cell(program_, a.stage, a.microbatch)];
    if (a.op == Op::forward) version = a.version;
    if (version >= 0 && version != a.version)
      return error(index, "runs with version {} of the weights, but {} ran with version {}", a.version,
                   to_string({Op::forward, a.stage, a.microbatch, -1, version}), version);
    if (reads_weights(a.op) && !has(s.present, a.version)) return absent(index, a, s);
    if (makes_weight_gradient(a.op)) ++s.pending;
    int const other = lender(program_, a.stage);
    if (other < 0) return;
    auto& lent = stages_[static_cast<std::size_t>(other)];
    if (reads_weights(a.op) && !has(lent.present, a.version))
      return absent(index, {a.op, other, a.microbatch, a.slot, a.version}, lent);
    if (makes_weight_gradient(a.op)) ++lent.pending;
  }

  /// Why a version cannot be read, and what would bring it.
  void absent(int index, Action const& a, StageWeights const& s) {
    auto const fix = [&](Op op) { return to_string({op, a.stage, -1, -1, a.version}); };
    if (a.version > s.newest)
      return error(index, "version {} of the weights of stage {} is not made yet", a.version, a.stage);
    if (has(s.away, a.version))
      return error(index, "the weights of stage {} are offloaded: {} has to come first", a.stage,
                   fix(Op::reload_weights));
    if (s.home == WeightHome::sharded && a.version == s.newest)
      return error(index, "the weights of stage {} are in parts: {} has to come first", a.stage,
                   fix(Op::gather_weights));
    error(index, "version {} of the weights of stage {} is gone: released, or overwritten by an update", a.version,
          a.stage);
  }

  void move(int index, Action const& a, StageWeights& s) {
    bool const there = has(s.present, a.version);
    switch (a.op) {
      case Op::gather_weights:
        if (s.home != WeightHome::sharded)
          return error(index, "stage {} has its weights whole: there is nothing to gather", a.stage);
        if (there) return error(index, "the weights of stage {} are whole already", a.stage);
        if (a.version != s.newest)
          return error(index, "the parts of the weights of stage {} are of version {}", a.stage, s.newest);
        s.present.push_back(a.version);
        return;
      case Op::release_weights:
        if (!there) return absent(index, a, s);
        if (s.home != WeightHome::sharded && a.version == s.newest)
          return error(index, "nothing else holds version {} of the weights of stage {}", a.version, a.stage);
        drop(s.present, a.version);
        return;
      case Op::offload_weights:
        if (!there) return absent(index, a, s);
        drop(s.present, a.version);
        s.away.push_back(a.version);
        return;
      default:
        if (!has(s.away, a.version))
          return error(index, "version {} of the weights of stage {} is not offloaded", a.version, a.stage);
        drop(s.away, a.version);
        s.present.push_back(a.version);
        return;
    }
  }

  void reduce(int index, Action const& a, StageWeights& s) {
    // One REDUCE and one STEP for the rank: check_progress() says when.
    bool const several = s.steps_alone || a.op == Op::reduce_scatter_gradients;
    if (several && s.pending == 0) return error(index, "stage {} has no gradients that were not reduced yet", a.stage);
    s.reduced += s.pending;
    s.pending = 0;
    s.scattered = s.scattered || a.op == Op::reduce_scatter_gradients;
  }

  void rank_step(int index, int stage) {
    auto const& s = stages_[static_cast<std::size_t>(stage)];
    if (s.scattered && s.pending > 0)
      return error(index, "STEP before the last gradients of stage {} are reduced", stage);
    if (!s.at_home()) error(index, "STEP updates the weights of stage {}, which are not in their place", stage);
  }

  void step(int index, Action const& a, StageWeights& s, bool keep_older) {
    if (a.version != s.newest + 1)
      return error(index, "makes version {} of the weights of stage {}, whose newest is {}", a.version, a.stage,
                   s.newest);
    if (s.pending > 0) return error(index, "STEP before the last gradients of stage {} are reduced", a.stage);
    if (s.reduced == 0) return error(index, "STEP of stage {} without new gradients", a.stage);
    if (!s.at_home())
      return error(index, "STEP updates the weights of stage {}, which are not in their place", a.stage);
    s.step(keep_older);
    s.reduced = 0;
  }

  /// The program may be run again.
  void end(int stage) {
    auto const& s = stages_[static_cast<std::size_t>(stage)];
    if (training_ && s.steps_alone && (s.pending > 0 || s.reduced > 0))
      return error(-1, "stage {} ends with gradients that no STEP has used", stage);
    std::vector<int> const none, newest{s.newest};
    bool const in_place = s.present == (s.home == WeightHome::resident ? newest : none) &&
                          s.away == (s.home == WeightHome::offloaded ? newest : none);
    if (in_place) return;
    for (int version : s.present)
      if (s.home != WeightHome::resident || version != s.newest)
        return error(-1, "version {} of the weights of stage {} stays at the end: {} is missing", version, stage,
                     to_string({s.home == WeightHome::offloaded && version == s.newest ? Op::offload_weights
                                                                                       : Op::release_weights,
                                stage, -1, -1, version}));
    error(-1, "the weights of stage {} are offloaded at the end: {} is missing", stage,
          to_string({Op::reload_weights, stage, -1, -1, s.away.front()}));
  }

  Program const& program_;
  bool training_;
  int rank_ = 0;
  std::vector<int> version_of_;  ///< by cell: that F ran with, -1: it did not run yet
  std::vector<StageWeights> stages_;
  std::vector<std::vector<int>> stages_of_;  ///< by rank
  std::vector<Violation> found_;
};

}  // namespace

std::vector<WeightHome> weight_homes(Program const& program) {
  std::vector<WeightHome> homes(static_cast<std::size_t>(program.num_stages), WeightHome::resident);
  std::vector<bool> known(homes.size(), false);
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) {
      auto const s = static_cast<std::size_t>(a.stage);
      if (!moves_weights(a.op) || known[s]) continue;
      known[s] = true;
      if (a.op == Op::gather_weights) homes[s] = WeightHome::sharded;
      if (a.op == Op::reload_weights) homes[s] = WeightHome::offloaded;
    }
  return homes;
}

std::vector<bool> keeps_older_versions(Program const& program, int rank) {
  auto const& actions = program.ranks[static_cast<std::size_t>(rank)];
  std::vector<bool> keeps(actions.size(), false);
  bool const any = std::any_of(actions.begin(), actions.end(), [](Action const& a) { return a.op == Op::stage_step; });
  if (!any) return keeps;
  auto const last = last_mentions(program, actions);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].op != Op::stage_step) continue;
    auto const mention = last.find({actions[i].stage, actions[i].version - 1});
    keeps[i] = mention != last.end() && mention->second > i;
  }
  return keeps;
}

std::vector<Violation> check_weights(Program const& program, Pass pass) { return WeightCheck(program, pass).check(); }

std::vector<double> peak_weight_bytes(Program const& program, std::vector<double> const& stage_bytes) {
  std::vector<StageWeights> stages;
  for (auto home : weight_homes(program)) stages.emplace_back(home);
  std::vector<double> peaks, at_begin(static_cast<std::size_t>(program.num_ranks), 0.0);
  for (std::size_t s = 0; s < stages.size(); ++s)
    at_begin[static_cast<std::size_t>(rank_of(program, static_cast<int>(s)))] +=
        static_cast<double>(stages[s].present.size()) * stage_bytes[s];
  for (int rank = 0; rank < program.num_ranks; ++rank) {
    auto const& actions = program.ranks[static_cast<std::size_t>(rank)];
    auto const keeps = keeps_older_versions(program, rank);
    double now = at_begin[static_cast<std::size_t>(rank)];
    double peak = now;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (!moves_weights(a.op) && a.op != Op::stage_step) continue;
      auto& s = stages[static_cast<std::size_t>(a.stage)];
      auto const before = s.present.size();
      if (a.op == Op::stage_step) s.step(keeps[i]);
      if (a.op == Op::gather_weights || a.op == Op::reload_weights) s.present.push_back(a.version);
      if (a.op == Op::release_weights || a.op == Op::offload_weights) drop(s.present, a.version);
      now += (static_cast<double>(s.present.size()) - static_cast<double>(before)) *
             stage_bytes[static_cast<std::size_t>(a.stage)];
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

namespace {

/// The actions of a rank that read weights, and by stage which of them read its weights, as places among them.
struct Readers {
  std::vector<std::size_t> actions;
  std::map<int, std::vector<std::size_t>> of_stage;

  /// `counts(stage)`: whether the weights of the stage come and go.
  template <class Counts>
  Readers(Program const& program, std::vector<Action> const& list, Counts const& counts) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      P3D_REQUIRE(!moves_weights(list[i].op), "weight actions are added once");
      if (!reads_weights(list[i].op)) continue;
      int const own = list[i].stage, lent = lender(program, own);
      if (counts(own)) of_stage[own].push_back(actions.size());
      if (lent >= 0 && lent != own && counts(lent)) of_stage[lent].push_back(actions.size());
      actions.push_back(i);
    }
  }
};

/// Weight actions to be merged into the list of a rank, by the action that they stand before or after.
struct Moves {
  std::vector<std::vector<Action>> before, after;

  /// Of every stage of `readers`: what brings its weights before its first reader (`once`), or before each that does
  /// not follow another one in a row, and what takes them away. `ahead(stage, place)`: so many readers earlier than
  /// reader `place`, but never ahead of another reader of the stage, where they are whole, or released a moment later.
  template <class Ahead, class Brings, class TakesAway>
  Moves(std::size_t actions, Readers const& readers, bool once, Ahead const& ahead, Brings const& brings,
        TakesAway const& takes_away)
      : before(actions), after(actions) {
    for (auto const& [stage, places] : readers.of_stage)
      for (std::size_t n = 0; n < places.size(); ++n) {
        bool const first = n == 0 || (!once && places[n] != places[n - 1] + 1);
        bool const last = n + 1 == places.size() || (!once && places[n + 1] != places[n] + 1);
        auto const earliest = n == 0 ? 0 : places[n - 1] + 1;
        if (first) {
          auto const early = std::min(ahead(stage, places[n]), places[n] - earliest);
          before[readers.actions[places[n] - early]].push_back({brings(stage), stage});
        }
        if (last) after[readers.actions[places[n]]].push_back({takes_away(stage), stage});
      }
  }
};

}  // namespace

void shard_weights(Program& program, Sharding const& sharding) {
  require_in_range(program);
  auto const brings = sharding.offloads ? Op::reload_weights : Op::gather_weights;
  auto const takes_away = sharding.offloads ? Op::offload_weights : Op::release_weights;
  for (auto& actions : program.ranks) {
    Readers const readers(program, actions, [](int) { return true; });
    Moves const moves(
        actions.size(), readers, sharding.gather == Every::step,
        [&](int, std::size_t) { return static_cast<std::size_t>(sharding.ahead); }, [&](int) { return brings; },
        [&](int) { return takes_away; });
    bool const scatters = !sharding.offloads, each = scatters && sharding.reduce == Every::microbatch;
    std::vector<Action> merged;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      merged.insert(merged.end(), moves.before[i].begin(), moves.before[i].end());
      if (!each || a.op != Op::reduce_gradients) merged.push_back(a);
      if (a.op == Op::reduce_gradients && scatters && !each) merged.back().op = Op::reduce_scatter_gradients;
      merged.insert(merged.end(), moves.after[i].begin(), moves.after[i].end());
      if (each && makes_weight_gradient(a.op)) merged.push_back({Op::reduce_scatter_gradients, a.stage});
    }
    actions = std::move(merged);
  }
}

namespace {

/// By stage, from where `begins` first says so until `ends` does.
template <class Begins, class Ends>
std::vector<std::vector<LiveInterval>> live_intervals(Program const& program, Begins const& begins, Ends const& ends) {
  auto const stages = static_cast<std::size_t>(program.num_stages);
  std::vector<std::vector<LiveInterval>> out(stages);
  for (auto const& actions : program.ranks) {
    std::vector<bool> open(stages, false);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action const& a = actions[i];
      if (a.op == Op::optimizer_step) continue;
      auto const s = static_cast<std::size_t>(a.stage);
      auto const begin = [&](int stage) {
        auto const at = static_cast<std::size_t>(stage);
        if (!open[at]) out[at].push_back({i, actions.size()});
        open[at] = true;
      };
      if (begins(a)) begin(a.stage);
      if (begins(a) && is_compute(a.op) && lender(program, a.stage) >= 0) begin(lender(program, a.stage));
      if (ends(a) && open[s]) {
        out[s].back().end = i;
        open[s] = false;
      }
    }
  }
  return out;
}

}  // namespace

std::vector<std::vector<LiveInterval>> whole_weights(Program const& program) {
  return live_intervals(
      program, [](Action const& a) { return a.op == Op::gather_weights || a.op == Op::reload_weights; },
      [](Action const& a) { return a.op == Op::release_weights || a.op == Op::offload_weights; });
}

std::vector<std::vector<LiveInterval>> whole_gradients(Program const& program) {
  return live_intervals(
      program,
      [](Action const& a) {
        return makes_input_gradient(a.op) || makes_weight_gradient(a.op) || makes_vocabulary_gradient(a.op);
      },
      [](Action const& a) { return reduces(a.op); });
}

namespace {

/// Whether a program brings the weights of some stage more than once: then for each use.
bool brings_for_each_use(Program const& program) {
  std::vector<int> times(static_cast<std::size_t>(program.num_stages), 0);
  for (auto const& actions : program.ranks)
    for (Action const& a : actions)
      if (a.op == Op::gather_weights || a.op == Op::reload_weights)
        if (++times[static_cast<std::size_t>(a.stage)] > 1) return true;
  return false;
}

}  // namespace

bool meet(std::vector<LiveInterval> const& a, std::vector<LiveInterval> const& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (x->begin <= y->end && y->begin <= x->end) return true;
    x->end < y->end ? ++x : ++y;
  }
  return false;
}

void bring_weights(Program& program, Program const& training) {
  P3D_REQUIRE(program.stage_rank == training.stage_rank, "both programs have the same stages");
  auto const homes = weight_homes(training);
  auto const home = [&](int stage) { return homes[static_cast<std::size_t>(stage)]; };
  if (std::all_of(homes.begin(), homes.end(), [](auto h) { return h == WeightHome::resident; })) return;
  bool const once = !brings_for_each_use(training);
  auto const whole = whole_weights(training);
  for (auto& actions : program.ranks) {
    Readers const readers(program, actions, [&](int stage) { return home(stage) != WeightHome::resident; });
    std::map<std::pair<int, int>, bool> known;
    auto const together = [&](int a, int b) {
      auto const [it, added] = known.try_emplace({a, b}, false);
      if (added) it->second = meet(whole[static_cast<std::size_t>(a)], whole[static_cast<std::size_t>(b)]);
      return it->second;
    };
    // The weights come one reader ahead where they lie beside those of that reader in training too: no more memory.
    auto const ahead = [&](int stage, std::size_t place) {
      if (place == 0) return std::size_t{0};
      auto const& reader = actions[readers.actions[place - 1]];
      for (int other : {reader.stage, lender(program, reader.stage)})
        if (other >= 0 && home(other) != WeightHome::resident && !together(stage, other)) return std::size_t{0};
      return std::size_t{1};
    };
    Moves const moves(
        actions.size(), readers, once, ahead,
        [&](int stage) { return home(stage) == WeightHome::sharded ? Op::gather_weights : Op::reload_weights; },
        [&](int stage) { return home(stage) == WeightHome::sharded ? Op::release_weights : Op::offload_weights; });
    std::vector<Action> merged;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      merged.insert(merged.end(), moves.before[i].begin(), moves.before[i].end());
      merged.push_back(actions[i]);
      merged.insert(merged.end(), moves.after[i].begin(), moves.after[i].end());
    }
    actions = std::move(merged);
  }
}

}  // namespace p3d::schedule
