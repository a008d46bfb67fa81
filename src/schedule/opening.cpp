// SPDX-License-Identifier: Apache-2.0
#include <p3d/schedule/opening.hpp>

#include <p3d/schedule/query.hpp>

#include <algorithm>
#include <array>
#include <limits>

#include "channels.hpp"

namespace p3d::schedule {

namespace {

constexpr bool may_stand_in_opening(Op op) {
  return op == Op::forward || op == Op::embed_forward || is_message(op) || op == Op::gather_weights ||
         op == Op::release_weights;
}

/// At first all before the first that may not stand there, then fewer until what they need is there too.
class Openings {
public:
  explicit Openings(Program const& program) : program_(program) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& actions = program.ranks[r];
      std::size_t n = 0;
      for (; n < actions.size() && may_stand_in_opening(actions[n].op); ++n)
        if (has_microbatch(actions[n].op)) place(actions[n], static_cast<int>(r)) = n;
      ends_.push_back(n);
    }
    while (cut()) {
    }
  }

  std::vector<std::size_t> const& ends() const { return ends_; }
  bool has(Op op, int stage, int microbatch) const { return has(op, stage, microbatch, rank_of(program_, stage)); }

private:
  static constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
  /// Where an action stands on its rank: by stage and microbatch, of an E by rank.
  std::size_t& place(Action const& a, int rank) {
    auto& places = places_[static_cast<std::size_t>(a.op)];
    if (places.empty()) places.assign(cell(program_, std::max(program_.num_stages, program_.num_ranks), 0), nowhere);
    return places[cell(program_, a.op == Op::embed_forward ? rank : a.stage, a.microbatch)];
  }
  bool has(Op op, int row, int microbatch, int rank) const {
    auto const& places = places_[static_cast<std::size_t>(op)];
    return !places.empty() && places[cell(program_, row, microbatch)] < ends_[static_cast<std::size_t>(rank)];
  }
  bool all_embed(int microbatch) const {
    for (int r = 0; r < program_.num_ranks; ++r)
      if (!has(Op::embed_forward, r, microbatch, r)) return false;
    return true;
  }
  bool has_all_it_needs(Action const& a) const {
    if (a.op == Op::embed_forward) return all_embed(a.microbatch);
    if (a.op != Op::forward) return true;
    if (program_.divides_vocabulary && a.stage + 1 == program_.num_stages) return false;
    if (a.stage == 0) return !program_.divides_vocabulary || all_embed(a.microbatch);
    return has(Op::forward, a.stage - 1, a.microbatch) &&
           (!input_is_remote(program_, a.stage) || has(Op::send_activation, a.stage - 1, a.microbatch));
  }
  /// One round; false: nothing changed.
  bool cut() {
    bool changed = false;
    for (std::size_t r = 0; r < ends_.size(); ++r)
      for (std::size_t i = 0; i < ends_[r]; ++i) {
        if (has_all_it_needs(program_.ranks[r][i])) continue;
        ends_[r] = i;
        changed = true;
      }
    return changed;
  }

  Program const& program_;
  std::vector<std::size_t> ends_;
  std::array<std::vector<std::size_t>, static_cast<std::size_t>(Op::embed_backward) + 1> places_;  ///< by Op
};

/// The other end of a message.
constexpr Op other_end(Op op) {
  return op == Op::send_activation   ? Op::recv_activation
         : op == Op::recv_activation ? Op::send_activation
         : op == Op::send_gradient   ? Op::recv_gradient
                                     : Op::send_gradient;
}

}  // namespace

Opening opening(Program const& program) {
  Openings const openings(program);
  Opening out{openings.ends(), std::vector<std::vector<Action>>(program.ranks.size())};
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (std::size_t i = openings.ends()[r]; i < program.ranks[r].size(); ++i) {
      Action const& a = program.ranks[r][i];
      if (is_message(a.op) && openings.has(other_end(a.op), peer_stage(a), a.microbatch)) out.unmatched[r].push_back(a);
    }
  return out;
}

}  // namespace p3d::schedule
