// SPDX-License-Identifier: Apache-2.0
// Cuts a program of several steps into the lists of its steps. A rank's list ends behind the last action that adds to
// the gradients of its step, and what sends its result on; everything is then checked on the lists: gradients and
// losses of steps do not mix, a rank is ahead by forwards of so many steps as its stages may be, and nobody waits in a
// list for the next list of another rank. An example: of 1F1B on 2 ranks with 2 microbatches, rank 0 has 0F0 0F1 0B0
// 0F2 0B1 0F3 0B2 ..., and its first list ends behind 0B1, since 0B2 is of the second step.
#include <p3d/schedule/stream.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace p3d::schedule {

namespace {

/// The ends of the steps of one rank: step t has its actions [bounds[t], bounds[t + 1]).
using Bounds = std::vector<std::size_t>;

bool adds_gradients(Op op) { return makes_weight_gradient(op) || makes_vocabulary_gradient(op); }

class Cutter {
public:
  Cutter(Program const& program, std::vector<int> const& ahead, std::string& why)
      : program_(program),
        ahead_(ahead),
        most_ahead_(*std::max_element(ahead.begin(), ahead.end())),
        steps_(stream_steps(most_ahead_)),
        microbatches_(program.num_microbatches / steps_),
        why_(why) {
    P3D_REQUIRE(program.num_microbatches % steps_ == 0, "the program is one of so many steps");
    P3D_REQUIRE(ahead.size() == static_cast<std::size_t>(program.num_stages), "each stage may be ahead");
  }

  int microbatches() const { return microbatches_; }

  /// Finds the ends of the steps of all ranks; false: there are none.
  bool cut() {
    for (std::size_t r = 0; r < program_.ranks.size(); ++r)
      if (!cut_rank(r)) return false;
    return closed();
  }

  /// The list of a rank in step t.
  StreamPart part(std::size_t rank, int t) const {
    StreamPart out;
    auto const& actions = program_.ranks[rank];
    auto const [begin, end] = std::pair(bound(rank, t), bound(rank, t + 1));
    std::map<int, std::size_t> last;  // by stage, the action that completes its gradients
    for (std::size_t i = begin; i < end; ++i)
      if (adds_gradients(actions[i].op) && step_of(actions[i]) == t) last[actions[i].stage] = i;
    std::vector<int> complete;  // stages that wait for the send behind their last backward
    auto const reduce = [&] {
      for (int stage : std::exchange(complete, {})) out.actions.push_back({Op::reduce_gradients, stage});
    };
    for (std::size_t i = begin; i < end; ++i) {
      if (!has_microbatch(actions[i].op)) continue;  // the program's own end
      if (!is_send(actions[i].op)) reduce();
      out.actions.push_back(relative(actions[i], t));
      if (auto const found = last.find(actions[i].stage); found != last.end() && found->second == i)
        complete.push_back(actions[i].stage);
    }
    reduce();
    out.actions.push_back({Op::optimizer_step});
    if (t > 0) out.in = carried(rank, t - 1);
    if (t + 1 < steps_) {
      out.out = carried(rank, t);
      out.unmatched = unmatched(rank, t);
    }
    return out;
  }

private:
  std::size_t bound(std::size_t rank, int t) const { return bounds_[rank][static_cast<std::size_t>(t)]; }
  int step_of(Action const& a) const { return a.microbatch / microbatches_; }
  Action relative(Action a, int t) const {
    a.microbatch -= t * microbatches_;
    return a;
  }

  bool cut_rank(std::size_t rank) {
    auto const& actions = program_.ranks[rank];
    Bounds bounds(static_cast<std::size_t>(steps_) + 1);
    for (int t = 0; t < steps_; ++t) {
      auto& end = bounds[static_cast<std::size_t>(t) + 1];
      for (std::size_t i = 0; i < actions.size(); ++i)
        if (adds_gradients(actions[i].op) && step_of(actions[i]) == t) end = i + 1;
      while (end < actions.size() && is_send(actions[end].op)) ++end;
      if (t + 1 == steps_) end = actions.size();
    }
    for (int t = 0; t + 1 < steps_; ++t)
      for (std::size_t i = 0; i < actions.size(); ++i) {
        Action const& a = actions[i];
        if (!has_microbatch(a.op)) continue;
        bool const before = i < bounds[static_cast<std::size_t>(t) + 1];
        bool const loss = a.op == Op::forward && a.stage + 1 == program_.num_stages;
        bool const early = before && step_of(a) > t && (adds_gradients(a.op) || makes_input_gradient(a.op) || loss);
        // A message may come as early as the earliest forward: it reads no weights.
        int const allowed = is_compute(a.op) ? ahead_[static_cast<std::size_t>(a.stage)] : most_ahead_;
        bool const too_early = before && step_of(a) > t + allowed;
        if (!early && !too_early && (before || step_of(a) > t)) continue;
        why_ =
            fmt::format("on pipeline rank {}, {} comes {}", rank, to_string(relative(a, t)),
                        too_early ? fmt::format("{} early, where {} {} allowed", base::counted(step_of(a) - t, "step"),
                                                allowed, allowed == 1 ? "is" : "are")
                        : early   ? "before the gradients of the step before are complete"
                                  : "after the gradients of its own step are complete");
        return false;
      }
    bounds_.push_back(bounds);
    return true;
  }

  Carried carried(std::size_t rank, int t) const {
    Carried out;
    for (std::size_t i = 0; i < bound(rank, t + 1); ++i) {
      Action const& a = program_.ranks[rank][i];
      if (has_microbatch(a.op) && step_of(a) > t) out[{a.stage, a.microbatch - (t + 1) * microbatches_}] = a.slot;
    }
    return out;
  }

  /// True when no rank waits in its part of a step for what another one does in its next part only: else a step would
  /// not end while nobody goes on. Of later steps there are forwards alone.
  bool closed() const {
    for (std::size_t r = 0; r < program_.ranks.size(); ++r)
      for (int t = 0; t + 1 < steps_; ++t)
        for (std::size_t i = bound(r, t); i < bound(r, t + 1); ++i) {
          Action const& a = program_.ranks[r][i];
          if (a.op != Op::forward || step_of(a) <= t || !input_is_remote(program_, a.stage)) continue;
          Action const needed{Op::recv_activation, a.stage, a.microbatch};
          if (other_end_is_before(needed, t)) continue;
          why_ = fmt::format("on pipeline rank {}, {} waits for what rank {} does in its next step", r,
                             to_string(relative(a, t)), rank_of(program_, a.stage - 1));
          return false;
        }
    return true;
  }

  /// Whether the other end of a message stands before the end of step t on its rank.
  bool other_end_is_before(Action const& message, int t) const {
    int const peer = peer_stage(message);
    auto const at = static_cast<std::size_t>(rank_of(program_, peer));
    auto const& actions = program_.ranks[at];
    auto const place = [&](int step) { return actions.begin() + static_cast<std::ptrdiff_t>(bound(at, step)); };
    return std::any_of(place(std::max(0, t - most_ahead_)), place(t + 1), [&](Action const& a) {
      return is_message(a.op) && is_send(a.op) != is_send(message.op) && a.stage == peer &&
             a.microbatch == message.microbatch && peer_stage(a) == message.stage;
    });
  }

  std::vector<Action> unmatched(std::size_t rank, int t) const {
    std::vector<Action> out;
    auto const& actions = program_.ranks[rank];
    for (std::size_t i = bound(rank, t + 1); i < bound(rank, std::min(t + 1 + most_ahead_, steps_)); ++i)
      if (is_message(actions[i].op) && other_end_is_before(actions[i], t)) out.push_back(relative(actions[i], t));
    return out;
  }

  Program const& program_;
  std::vector<int> const& ahead_;
  int most_ahead_, steps_, microbatches_;
  std::string& why_;
  std::vector<Bounds> bounds_;
};

/// True when two lists are the same but for the names of slots.
bool alike(StreamPart const& a, StreamPart const& b) {
  auto const same = [](Action x, Action const& y) {
    x.slot = y.slot;
    return x == y;
  };
  auto const keys = [](Carried const& x) {
    std::set<std::pair<int, int>> out;
    for (auto const& [key, slot] : x) out.insert(key);
    return out;
  };
  return std::ranges::equal(a.actions, b.actions, same) && keys(a.in) == keys(b.in) && keys(a.out) == keys(b.out);
}

}  // namespace

void finish_weight_gradients(Program& compute, int microbatches) {
  for (auto& actions : compute.ranks)
    for (int t = 0; t < compute.num_microbatches / microbatches; ++t) {
      auto const first = std::find_if(actions.begin(), actions.end(), [&](Action const& a) {
        bool const loss = a.op == Op::forward && a.stage + 1 == compute.num_stages;
        return (loss || makes_input_gradient(a.op)) && a.microbatch / microbatches == t + 1;
      });
      auto const late = [&](Action const& a) { return a.microbatch / microbatches <= t; };
      if (std::any_of(first, actions.end(), [&](Action const& a) { return late(a) && a.op != Op::backward_weight; }))
        continue;
      std::stable_partition(first, actions.end(), late);
    }
}

std::vector<Action> SlotNames::apply(Program const& steps, StreamPart const& part, bool follows) {
  auto const former = std::exchange(names_, {});
  auto out = part.actions;
  for (Action const& a : out)
    if (a.slot >= 0)
      names_[a.stage].assign(static_cast<std::size_t>(steps.num_slots.at(static_cast<std::size_t>(a.stage))), -1);
  if (follows)
    for (auto const& [key, slot] : part.in)
      names_.at(key.first).at(static_cast<std::size_t>(slot)) =
          former.at(key.first).at(static_cast<std::size_t>(left_.at(key)));
  for (auto& [stage, names] : names_) {
    std::vector<bool> taken(names.size(), false);
    for (int name : names)
      if (name >= 0) taken[static_cast<std::size_t>(name)] = true;
    auto free = taken.begin();
    for (int& name : names) {
      if (name >= 0) continue;
      free = std::find(free, taken.end(), false);
      name = static_cast<int>(free++ - taken.begin());
    }
  }
  for (Action& a : out)
    if (a.slot >= 0) a.slot = names_.at(a.stage)[static_cast<std::size_t>(a.slot)];
  left_ = part.out;
  return out;
}

std::optional<Stream> make_stream(ValidProgram steps, std::vector<int> ahead, std::string& why) {
  Stream out{std::move(steps), 0, std::move(ahead), {}, {}, {}};
  Cutter cutter(out.steps, out.ahead, why);
  if (!cutter.cut()) return {};
  out.microbatches = cutter.microbatches();
  int const most = out.most_ahead();
  for (std::size_t r = 0; r < out.steps->ranks.size(); ++r) {
    out.first.push_back(cutter.part(r, 0));
    out.middle.push_back(cutter.part(r, 1));
    if (most <= 1) out.last.push_back(cutter.part(r, stream_steps(most) - 1));
    if (alike(out.middle.back(), cutter.part(r, 2))) continue;
    why = fmt::format("steps in the middle differ on pipeline rank {}", r);
    return {};
  }
  return out;
}

}  // namespace p3d::schedule
