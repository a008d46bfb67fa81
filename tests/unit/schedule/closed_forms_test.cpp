// SPDX-License-Identifier: Apache-2.0
// Closed forms of every schedule without communication cost, against an event simulation of the test's own. f, i, w:
// time of forward, input part and weight part of a whole rank; v: stages per rank.

#include "unit_cost.hpp"

#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

using namespace p3d::schedule;
using p3d::test::Costs;
using p3d::test::run_free;

namespace {

constexpr int most_ranks = 16, most_microbatches = 64, most_chunks = 4;

int peak_of(Program const& program) {
  int peak = 0;
  for (int rank = 0; rank < program.num_ranks; ++rank)
    peak = std::max(peak, p3d::test::peak_live_on_rank(program, rank));
  return peak;
}

}  // namespace

TEST(ClosedForms, sequential_runs_one_rank_at_a_time) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_microbatches; ++m) {
      Program const program = generate("sequential", {p, m});
      ASSERT_EQ(run_free(program, {1, 1, 0.5}).makespan, m * p * 2.5);
      ASSERT_EQ(peak_of(program), 1);
    }
  EXPECT_EQ(generate("round_robin", {3, 4}), generate("sequential", {3, 4}));
}

// arXiv 2104.04473 section 2.2: bubble (p-1)(f+b)/v; memory 1 + (p-1)/(p v) times 1F1B's: (v p + p - 1) chunks. For
// every m, not only for multiples of p; fewer than p add p - m idle steps at each of the v - 1 turns.
TEST(ClosedForms, interleaved) {
  for (int v = 1; v <= most_chunks; ++v)
    for (int p = 1; p <= most_ranks; ++p)
      for (int m = 1; m <= most_microbatches; ++m) {
        Program const program = generate("interleaved_1f1b", {p, m, v});
        double const steps = m * v + p - 1 + (v - 1) * std::max(0, p - m);
        for (Costs const costs : {Costs{1, 1, 1}, {2, 1, 0.5}, {1, 2, 0}})
          ASSERT_EQ(run_free(program, costs).makespan, steps * (costs.forward + costs.input + costs.weight))
              << p << " ranks, " << m << " microbatches, " << v << " chunks";
        for (int rank = 0; rank < p; ++rank) {
          int const group = m < p ? m : (m + m / p - 1) / (m / p);
          int const ahead = v == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (v - 1) * group;
          ASSERT_EQ(p3d::test::peak_live_on_rank(program, rank), std::min(m * v, ahead + 1));
        }
        if (m % p == 0 && v > 1) {
          ASSERT_EQ(peak_of(program), std::min(m * v, v * p + p - 1));
        }
      }
}

// arXiv 2211.05953 section 3: the bubble of GPipe over v; all activations are kept.
TEST(ClosedForms, looped_bfs) {
  for (int v = 1; v <= most_chunks; ++v)
    for (int p = 1; p <= most_ranks; ++p)
      for (int m = 1; m <= most_microbatches; ++m) {
        Program const program = generate("looped_bfs", {p, m, v});
        double const steps = m * v + p - 1 + (v - 1) * std::max(0, p - m);
        ASSERT_EQ(run_free(program, {1, 1, 1}).makespan, 3 * steps);
        ASSERT_EQ(peak_of(program), m * v);
      }
}

// arXiv 2401.10241 table 1: bubble (p-1)(f + b - w) at memory p, against (p-1)(f + b + w) of 1F1B: a third for f = b =
// w. In it, the bubble of a rank counts from its first to its last action. Here the time from the first action of all
// to the last of all is exact too: p - 1 units longer than the work.
TEST(ClosedForms, zb_h1_has_a_third_of_the_bubble) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = p; m <= most_microbatches; ++m) {
      Program const program = generate("zb_h1", {p, m});
      auto const run = run_free(program, {1, 1, 1});
      double const one_f_one_b_bubble = run_free(one_f_one_b(p, m), {1, 1, 1}).makespan - 3 * m;
      ASSERT_EQ(run.longest_span - 3 * m, p - 1);
      ASSERT_EQ(3 * (run.makespan - 3 * m), one_f_one_b_bubble) << p << " ranks, " << m << " microbatches";
      ASSERT_EQ(peak_of(program), p);
      // Table 1 for other costs, where w is not the longest part.
      for (Costs const costs : {Costs{2, 2, 1}, {3, 2, 2}, {2, 2, 2}})
        ASSERT_EQ(run_free(program, costs).longest_span - m * (costs.forward + costs.input + costs.weight),
                  (p - 1) * (costs.forward + costs.input - costs.weight));
    }
}

// arXiv 2401.10241 table 1: bubble (p-1)(f + b - 2w), zero for f = b = w, at memory 2p - 1.
TEST(ClosedForms, zb_h2_has_no_bubble) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 2 * p - 1; m <= most_microbatches; ++m) {
      Program const program = generate("zb_h2", {p, m});
      auto const run = run_free(program, {1, 1, 1});
      ASSERT_EQ(run.longest_span, 3 * m) << p << " ranks, " << m << " microbatches";
      ASSERT_EQ(run.makespan, 3 * m + p - 1);
      ASSERT_EQ(peak_of(program), 2 * p - 1);
    }
}

// arXiv 2401.10241 section 6: ZB-V has no bubble for f = b = w in the memory of 1F1B: 2p chunks, of half a rank each.
TEST(ClosedForms, zb_v_has_no_bubble) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_microbatches; ++m) {
      Program const program = generate("zb_v", {p, m, 2});
      auto const run = run_free(program, {1, 1, 1});
      ASSERT_LE(peak_of(program), 2 * p);
      if (m < 2 * p - 1) continue;
      ASSERT_EQ(run.longest_span, 6 * m) << p << " ranks, " << m << " microbatches";
      ASSERT_EQ(run.makespan, 6 * m + p - 1);
      ASSERT_EQ(peak_of(program), 2 * p);
    }
}

// DualPipeV: at most the (p-1)(f&b + b - 3w) that its README states for stages of equal parts without overlap (two
// stages per rank: 2(p-1) units), at 2p + 1 chunks.
TEST(ClosedForms, dualpipe_v) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 2 * p; m <= most_microbatches; ++m) {
      Program const program = generate("dualpipe_v", {p, m, 2});
      ASSERT_EQ(run_free(program, {1, 1, 1}).makespan, 6 * m + p - 1) << p << " ranks, " << m << " microbatches";
      ASSERT_EQ(peak_of(program), std::min(2 * p + 1, 2 * m));
    }
}

// arXiv 2405.15362: memory of V-Min and V-Half, in microbatches of both stages, (p+4)/3 and (p+2)/2 (rounded down;
// 1F1B: p); bubbles about 2p/3 and p/2 of a microbatch's time (1F1B: p-1). These two are heuristics (a repeated
// pattern, squeezed): the gap to a zero bubble is printed.
TEST(ClosedForms, v_min_and_v_half_keep_to_their_memory) {
  struct Case {
    char const* name;
    int (*memory)(int);
    double (*bubble)(int);
  };
  for (Case const& c : {Case{"v_min", [](int p) { return (p + 4) / 3; }, [](int p) { return 2.0 * p / 3; }},
                        Case{"v_half", [](int p) { return (p + 2) / 2; }, [](int p) { return p / 2.0; }}}) {
    std::cout << c.name << ", bubble beyond the work in units of f = i = w of a stage (1f1b: 6 (p-1)):";
    for (int p = 2; p <= most_ranks; ++p) {
      double worst = 0;
      for (int m = 1; m <= most_microbatches; ++m) {
        Program const program = generate(c.name, {p, m, 2});
        ASSERT_LE(peak_of(program), 2 * c.memory(p)) << c.name << ", " << p << " ranks, " << m << " microbatches";
        auto const run = run_free(program, {1, 1, 1});
        if (m >= 2 * p) worst = std::max(worst, run.makespan - 6 * m);
        if (m >= 2 * p) {
          ASSERT_EQ(peak_of(program), 2 * c.memory(p));
        }
      }
      std::cout << " p=" << p << ":" << worst;
      EXPECT_LE(worst, 6 * c.bubble(p)) << c.name << ", " << p << " ranks";
    }
    std::cout << '\n';
  }
}

// arXiv 2211.05322 (eager-1F1B): the time of 1F1B when messages are free, with 2(p - s) - 1 microbatches on stage s in
// place of p - s.
TEST(ClosedForms, eager_1f1b) {
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_microbatches; ++m) {
      Program const program = generate("eager_1f1b", {p, m});
      for (Costs const costs : {Costs{1, 1, 1}, {2, 1, 0.5}})
        ASSERT_EQ(run_free(program, costs).makespan, (m + p - 1) * (costs.forward + costs.input + costs.weight))
            << p << " ranks, " << m << " microbatches";
      for (int s = 0; s < p; ++s) ASSERT_EQ(p3d::test::peak_live(program, s), std::min(2 * (p - s) - 1, m));
    }
}

TEST(ClosedForms, one_rank_never_waits) {
  for (Generator const* g : generators())
    for (int m = g->smallest_microbatches(1); m <= 8; ++m)
      ASSERT_EQ(run_free(generate(g->name, {1, m, 0}), {1, 1, 1}).makespan, 3 * m * g->stages_per_rank) << g->name;
}
