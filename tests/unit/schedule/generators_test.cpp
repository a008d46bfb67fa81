// SPDX-License-Identifier: Apache-2.0
// Closed forms of the generators (no communication cost), against an event simulation of the test's own.

#include "unit_cost.hpp"

#include <p3d/schedule/schedule.hpp>

#include <gtest/gtest.h>

using namespace p3d::schedule;
using p3d::test::run_free;
using p3d::test::peak_live;

// GPipe, arXiv 1811.06965, and 1F1B, arXiv 2104.04473 section 2.2: (m + p - 1)(f + b) for equal stages.
TEST(Generators, makespan_of_gpipe_and_1f1b) {
  for (int p = 1; p <= 16; ++p)
    for (int m = 1; m <= 64; ++m)
      for (p3d::test::Costs const costs : {p3d::test::Costs{1, 1, 0}, {1, 1, 1}, {2, 1, 0.5}}) {
        double const ideal = (m + p - 1) * (costs.forward + costs.input + costs.weight);
        ASSERT_EQ(run_free(gpipe(p, m), costs).makespan, ideal) << p << " ranks, " << m << " microbatches";
        ASSERT_EQ(run_free(one_f_one_b(p, m), costs).makespan, ideal) << p << " ranks, " << m << " microbatches";
      }
}

TEST(Generators, peak_of_live_activations) {
  for (int p = 1; p <= 16; ++p)
    for (int m = 1; m <= 64; ++m) {
      Program const g = gpipe(p, m), o = one_f_one_b(p, m);
      Program const gc = complete(g), oc = complete(o);
      for (int s = 0; s < p; ++s) {
        auto const i = static_cast<std::size_t>(s);
        ASSERT_EQ(peak_live(g, s), m);
        ASSERT_EQ(peak_live(o, s), std::min(p - s, m));
        ASSERT_EQ(gc.num_slots[i], m);                   // the slot pass reads it off the list,
        ASSERT_EQ(oc.num_slots[i], std::min(p - s, m));  // and early receives cost none
      }
    }
}

TEST(Generators, one_f_one_b_by_hand) {
  EXPECT_EQ(to_text(one_f_one_b(3, 4)),
            "p3d-schedule 1 stages=3 ranks=3 microbatches=4\n"
            "rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
            "rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
            "rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n");
}
