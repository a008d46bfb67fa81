// SPDX-License-Identifier: Apache-2.0
// Schedules in a V from a building block: the times of the six actions of one microbatch on each rank, which every
// microbatch repeats `period` later. The search tries all blocks and takes one whose activations live the shortest;
// then the repeated blocks are squeezed into lists without gaps. Example: with offsets of 2 down and 1 up, F of the
// first stage begins 2 later on each rank, and F of the second one 1 earlier.

#include "building_block.hpp"

#include "generators/common.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace p3d::schedule {
namespace {

constexpr int period = 6;  // six actions per rank and microbatch

/// The actions of a block on one rank, in the order of their dependence.
enum Kind { f0, f1, i1, i0, w1, w0 };
constexpr std::array<Kind, 6> kinds{f0, f1, i1, i0, w1, w0};
constexpr bool is_forward(Kind k) { return k <= f1; }
constexpr bool is_weight(Kind k) { return k >= w1; }
constexpr int chunk(Kind k) { return k == f1 || k == i1 || k == w1 ? 1 : 0; }
constexpr Op op_of(Kind k) {
  return is_forward(k) ? Op::forward : is_weight(k) ? Op::backward_weight : Op::backward_input;
}

using Times = std::array<int, 6>;  ///< time of each kind of action for microbatch 0
using Block = std::vector<Times>;  ///< times on each rank

/// Live microbatches of both stages in the repeated pattern, at its worst time.
int peak(Times const& t) {
  int worst = 0;
  for (int phase = 0; phase < period; ++phase) {
    int live = 0;  // k counts with t[f] <= phase + period k <= t[w], over all whole k
    for (auto const& [f, w] : {std::pair{f0, w0}, std::pair{f1, w1}})
      for (int time = t[f]; time <= t[w]; ++time) live += (time - phase) % period == 0;
    worst = std::max(worst, live);
  }
  return worst;
}

/// The block on every rank when the second stage's forward on the last rank comes at `a`, its input part on rank 0 at
/// `b`, and the first stage's input part on the last rank at `c`. Nothing where two actions meet.
std::optional<Block> place(int p, VOffsets d, int a, int b, int c) {
  Block block;
  for (int rank = 0; rank < p; ++rank) {
    Times t{};
    t[f0] = d.down * rank;
    t[f1] = a + d.up * (p - 1 - rank);
    t[i1] = b + d.down * rank;
    t[i0] = c + d.up * (p - 1 - rank);
    std::array<bool, period> taken{};
    for (Kind k : {f0, f1, i1, i0}) {
      auto& place = taken[static_cast<std::size_t>(t[k] % period)];
      if (place) return {};
      place = true;
    }
    // Two places are left for the weight parts: give them so that activations live the shortest.
    auto const next_free = [&](int from, int other) {
      while (taken[static_cast<std::size_t>(from % period)] || (other >= 0 && (from - other) % period == 0)) ++from;
      return from;
    };
    int const first1 = next_free(t[i1] + 1, -1), then0 = next_free(t[i0] + 1, first1);
    int const first0 = next_free(t[i0] + 1, -1), then1 = next_free(t[i1] + 1, first0);
    bool const one_first = first1 + then0 <= first0 + then1;
    t[w1] = one_first ? first1 : then1;
    t[w0] = one_first ? then0 : first0;
    block.push_back(t);
  }
  return block;
}

/// The block of the smallest memory; of equals the shortest.
Block best_block(int p, VOffsets d) {
  Block best;
  std::pair<int, int> best_cost{std::numeric_limits<int>::max(), 0};
  int const a0 = d.down * (p - 1) + 1;
  for (int a = a0; a < a0 + period; ++a)
    for (int b = a + d.up * (p - 1) + 1; b <= a + d.up * (p - 1) + period; ++b)
      for (int c = b + d.down * (p - 1) + 1; c <= b + d.down * (p - 1) + period; ++c) {
        auto block = place(p, d, a, b, c);
        if (!block) continue;
        int worst = 0;
        for (Times const& t : *block) worst = std::max(worst, peak(t));
        if (std::pair const cost{worst, c}; cost < best_cost) {
          best_cost = cost;
          best = std::move(*block);
        }
      }
  P3D_REQUIRE(!best.empty(), "the offsets of a V block let every rank do its six actions");
  return best;
}

/// Lists with every action one unit long, each rank going on as soon as it can. Every kind runs in the order of the
/// microbatches, so that counts are all the state there is.
class Squeeze {
public:
  Squeeze(Shape const& shape, Block const& block, bool reorder)
      : program(empty_program(shape, Placement::v)),
        block_(block),
        reorder_(reorder),
        p_(shape.num_ranks),
        m_(shape.num_microbatches),
        done_(block.size()),
        live_(block.size(), 0) {
    for (Times const& t : block) memory_ = std::max(memory_, peak(t));
    auto before = done_;
    for (long left = 6L * p_ * m_; left > 0; ++makespan) {
      long const last = left;
      for (int rank = 0; rank < p_; ++rank)
        if (auto const kind = choose(rank, before)) {
          run(rank, *kind);
          --left;
        }
      if (left == last) {  // cannot happen in the pattern's own order
        makespan = std::numeric_limits<int>::max();
        return;
      }
      before = done_;
    }
  }

  Program program;
  int makespan = 0;

private:
  using Counts = std::array<int, 6>;
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  int time(int rank, Kind k) const { return block_[at(rank)][k] + period * done_[at(rank)][k]; }

  bool ready(int rank, Kind k, std::vector<Counts> const& before) const {
    int const n = done_[at(rank)][k];
    switch (k) {
      case f0: return rank == 0 || before[at(rank - 1)][f0] > n;
      case f1: return (rank == p_ - 1 ? before[at(rank)][f0] : before[at(rank + 1)][f1]) > n;
      case i1: return (rank == 0 ? before[0][f1] : before[at(rank - 1)][i1]) > n;
      case i0: return (rank == p_ - 1 ? before[at(rank)][i1] : before[at(rank + 1)][i0]) > n;
      case w1: return before[at(rank)][i1] > n;
      case w0: return before[at(rank)][i0] > n;
    }
    return false;
  }

  std::optional<Kind> choose(int rank, std::vector<Counts> const& before) const {
    std::array<Kind, 6> next{};
    std::size_t count = 0;
    for (Kind k : kinds)
      if (done_[at(rank)][k] < m_) {
        std::size_t i = count++;
        for (; i > 0 && time(rank, next[i - 1]) > time(rank, k); --i) next[i] = next[i - 1];
        next[i] = k;
      }
    if (count == 0) return {};
    bool const first_ready = ready(rank, next[0], before);
    if (!reorder_) return first_ready ? std::optional(next[0]) : std::nullopt;
    if (is_weight(next[0]) && live_[at(rank)] < memory_)  // other ranks wait for input parts, nobody for weight parts
      for (std::size_t i = 1; i < count; ++i)
        if (op_of(next[i]) == Op::backward_input && ready(rank, next[i], before)) return next[i];
    if (first_ready) return next[0];
    for (std::size_t i = 1; i < count; ++i) {
      bool const fits = !is_forward(next[i]) || live_[at(rank)] + 1 + forwards_before(rank, next, i) <= memory_;
      if (fits && ready(rank, next[i], before)) return next[i];
    }
    return {};
  }

  /// Forwards of the other stage that the pattern has before next[i]: they keep their memory.
  int forwards_before(int rank, std::array<Kind, 6> const& next, std::size_t i) const {
    for (std::size_t j = 0; j < i; ++j)
      if (is_forward(next[j])) return (time(rank, next[i]) - time(rank, next[j])) / period + 1;
    return 0;
  }

  void run(int rank, Kind k) {
    auto& count = done_[at(rank)][k];
    int const stage = stage_of(Placement::v, p_, rank, chunk(k));
    program.ranks[at(rank)].push_back({op_of(k), stage, count++});
    if (is_forward(k)) ++live_[at(rank)];
    if (is_weight(k)) --live_[at(rank)];
  }

  Block const& block_;
  bool reorder_;
  int p_, m_;
  int memory_ = 0;
  std::vector<Counts> done_;  ///< microbatches done of each rank and kind
  std::vector<int> live_;     ///< microbatches of each rank between forward and weight part
};

}  // namespace

Program v_program(Shape const& shape, VOffsets offsets) {
  P3D_REQUIRE(shape.stages_per_rank == 2, "a V has two stages per rank");
  Block const block = best_block(shape.num_ranks, offsets);
  Squeeze plain(shape, block, false), reordered(shape, block, true);
  return reordered.makespan < plain.makespan ? std::move(reordered.program) : std::move(plain.program);
}

}  // namespace p3d::schedule
