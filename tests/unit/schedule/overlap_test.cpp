// SPDX-License-Identifier: Apache-2.0
// Messages travel while ranks compute: receives are posted before the action that precedes their use, and sends are
// waited for only where their slot is used again.

#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <map>

using namespace p3d::schedule;

namespace {

constexpr Execution as_executed{true, std::numeric_limits<int>::max()};  // engine::execution

/// Receives with and without a compute action between them and the one that needs them. The first of a rank does not
/// count: there is nothing before it.
struct Receives {
  int early = 0, late = 0;
};

Receives receives(Program const& program) {
  Receives found;
  for (auto const& list : program.ranks) {
    bool computed = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      computed = computed || is_compute(list[i].op);
      if (!is_recv(list[i].op) || !computed) continue;
      std::size_t next = i + 1;
      while (!is_compute(list[next].op)) ++next;
      bool const at_use = list[next].stage == list[i].stage && list[next].microbatch == list[i].microbatch;
      ++(at_use ? found.late : found.early);
    }
  }
  return found;
}

}  // namespace

// What a run does (pipeline.lookahead = 1). The sequential schedule has nothing to compute meanwhile.
TEST(Overlap, receives_of_every_schedule_are_posted_early) {
  for (Generator const* g : generators())
    for (int p = 2; p <= 8; ++p)
      for (int m = std::max(p, g->smallest_microbatches(p)); m <= 4 * p; m += 3) {
        auto const found = receives(complete(generate(g->name, {p, m, 0}), 1, 1));
        if (g->name == "sequential") {
          EXPECT_GT(found.late, 0);
          continue;
        }
        EXPECT_GT(found.early, 0) << g->name;
        // The drain of v_min asks for one gradient where the rank has nothing else to do.
        EXPECT_LE(found.late, g->name == "v_min" ? 2 : 0) << g->name << ", p " << p << ", m " << m;
      }
}

// A lookahead of one keeps one more microbatch of each stage at the most.
TEST(Overlap, costs_at_most_a_slot_of_a_stage) {
  for (Generator const* g : generators())
    for (int p = 2; p <= 8; ++p)
      for (int m = g->smallest_microbatches(p); m <= 4 * p; m += 3) {
        auto const least = complete(generate(g->name, {p, m, 0})), ahead = complete(generate(g->name, {p, m, 0}), 1, 1);
        for (std::size_t s = 0; s < least.num_slots.size(); ++s) {
          EXPECT_GE(ahead.num_slots[s], least.num_slots[s]) << g->name;
          EXPECT_LE(ahead.num_slots[s], least.num_slots[s] + 1) << g->name;
        }
      }
}

// With messages that take half as long as a part, an overlapping schedule must not be slower, and 1f1b and dualpipe_v
// quicker.
TEST(Overlap, hides_messages) {
  std::map<std::string_view, double> gain;
  for (Generator const* g : generators()) {
    double time[2];
    for (int lookahead : {0, 1}) {
      auto const program = complete(generate(g->name, {4, 16, 0}), 1, lookahead);
      auto costs = p3d::plan::PipelineCosts::uniform(program.num_stages);
      costs.latency = 0.5;
      time[lookahead] = p3d::plan::simulate(program, costs, as_executed).makespan;
    }
    EXPECT_LE(time[1], time[0]) << g->name;
    gain[g->name] = time[0] - time[1];
  }
  EXPECT_GT(gain["1f1b"], 0);
  EXPECT_GT(gain["dualpipe_v"], 0);
}

// What the eager variant is for (arXiv 2211.05322): with messages of half a forward the steady state runs at the speed
// of the compute, (f + b) for each microbatch; 1f1b pays for the way there and back.
TEST(Overlap, eager_1f1b_hides_what_1f1b_cannot) {
  int const p = 4;
  auto const time = [&](char const* name, int m) {
    auto const program = complete(generate(name, {p, m}), 1, 1);
    auto costs = p3d::plan::PipelineCosts::uniform(p);
    costs.latency = 0.5;
    return p3d::plan::simulate(program, costs, as_executed).makespan;
  };
  EXPECT_DOUBLE_EQ(time("eager_1f1b", 40) - time("eager_1f1b", 20), 20 * 3.0);
  EXPECT_GT(time("1f1b", 40) - time("1f1b", 20), 20 * 3.2);
}

// A rank waits for a send when it takes the slot again. It computes something before that, so that the message has
// time.
TEST(Overlap, no_slot_is_taken_right_after_a_send_from_it) {
  for (Generator const* g : generators())
    for (int p = 2; p <= 8; ++p) {
      auto const program = complete(generate(g->name, {p, 2 * p + 1, 0}), 1, 1);
      int sends = 0;
      for (auto const& list : program.ranks)
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (!is_send(list[i].op)) continue;
          ++sends;
          for (std::size_t next = i + 1; next < list.size() && !is_compute(list[next].op); ++next)
            EXPECT_FALSE(list[next].op == Op::recv_activation && list[next].stage == list[i].stage &&
                         list[next].slot == list[i].slot)
                << g->name << ", p " << p << ": " << to_string(list[next]) << " after " << to_string(list[i]);
        }
      EXPECT_GE(sends, 2 * (p - 1) * (2 * p + 1)) << g->name;
    }
}
