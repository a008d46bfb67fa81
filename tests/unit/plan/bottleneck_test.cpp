// SPDX-License-Identifier: Apache-2.0
// Twelve made-up runs, each with one bottleneck that must be named, with its share and its key.
#include <p3d/plan/bottleneck.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {
using namespace p3d;
using config::Axis;
using plan::Bottleneck;

/// Shares with messages along up to two axes.
plan::TimeShares with(plan::TimeShares shares, Axis a, double share, Axis b = Axis::pp, double other = 0.0) {
  shares.along(a) = share;
  shares.along(b) = other;
  return shares;
}

TEST(Bottleneck, TwelveMadeUpRuns) {
  struct Case {
    plan::TimeShares shares;
    Bottleneck what;
    double share;
    char const* key;
  };
  std::vector<Case> const cases{
      // A pipeline of 4 stages with 4 microbatches: 3 of 7 parts of a step are idle, and the plan says so.
      {with({.pipeline_wait = 0.43, .planned_wait = 0.43}, Axis::dp, 0.1), Bottleneck::pipeline_plan, 0.43,
       "batch.microbatches"},
      // Without a simulation all of the wait counts as planned.
      {{.pipeline_wait = 0.2, .optimizer = 0.1}, Bottleneck::pipeline_plan, 0.2, "pipeline.schedule"},
      {{.pipeline_wait = 0.4, .planned_wait = 0.1}, Bottleneck::pipeline_messages, 0.3, "pipeline.lookahead"},
      // A slow stage: its neighbours wait for it beyond the plan.
      {{.pipeline_wait = 0.4, .planned_wait = 0.1, .slow_rank = 0.28},
       Bottleneck::slow_rank,
       0.28,
       "pipeline.layers_per_stage"},
      // A slow replica: the others wait in the sum of gradients.
      {with({.slow_rank = 0.25}, Axis::dp, 0.3), Bottleneck::slow_rank, 0.25, "run.trace"},
      {with({.slow_rank = 0.02}, Axis::tp, 0.3, Axis::dp, 0.1), Bottleneck::messages, 0.285, "parallel.tp"},
      {with({}, Axis::tp, 0.1, Axis::cp, 0.35), Bottleneck::messages, 0.35, "parallel.cp"},
      {with({}, Axis::dp, 0.2, Axis::ep, 0.4), Bottleneck::messages, 0.4, "comm.overlap_experts"},
      {with({.pipeline_wait = 0.1, .planned_wait = 0.1}, Axis::dp, 0.5), Bottleneck::messages, 0.5, "comm.allreduce"},
      {with({.data = 0.3, .disk = 0.1}, Axis::dp, 0.1), Bottleneck::data, 0.3, "batch.micro)"},
      {{.data = 0.2, .disk = 0.45}, Bottleneck::disk, 0.45, "checkpoint.every"},
      {with({.data = 0.02, .optimizer = 0.25}, Axis::dp, 0.1), Bottleneck::optimizer, 0.25, "memory.shard"},
  };
  for (auto const& c : cases) {
    auto const found = plan::find_bottleneck(c.shares);
    auto const text = plan::describe(found, {.recomputes = true, .divides_update = false});
    EXPECT_EQ(found.what, c.what) << text;
    EXPECT_NEAR(found.share, c.share, 1e-12) << text;
    EXPECT_NE(text.find(c.key), std::string::npos) << text;
  }
}

TEST(Bottleneck, WhatIsSetAlreadyDoesNotHelp) {
  auto const experts = plan::find_bottleneck(with({}, Axis::ep, 0.5));
  EXPECT_NE(plan::describe(experts, {}).find("comm.overlap_experts"), std::string::npos);
  EXPECT_EQ(plan::describe(experts, {.overlaps_experts = true}).find("comm.overlap_experts"), std::string::npos);
  auto const optimizer = plan::find_bottleneck({.optimizer = 0.5});
  EXPECT_NE(plan::describe(optimizer, {.divides_update = false}).find("memory.shard"), std::string::npos);
  EXPECT_EQ(plan::describe(optimizer, {.divides_update = true}).find("memory.shard"), std::string::npos);
}

TEST(Bottleneck, ElseItIsCompute) {
  auto const found = plan::find_bottleneck(with({.data = 0.01, .optimizer = 0.04}, Axis::tp, 0.04));
  EXPECT_EQ(found.what, Bottleneck::compute);
  EXPECT_NEAR(found.share, 0.91, 1e-12);
  EXPECT_EQ(plan::describe(found, {}), "compute, 91.0 % of the time; what would help: more ranks");
  EXPECT_EQ(plan::describe(found, {.recomputes = true}),
            "compute, 91.0 % of the time; what would help: more ranks, or memory.recompute = \"none\" where memory "
            "allows it");
  EXPECT_EQ(plan::find_bottleneck({.slow_rank = 0.5}).what, Bottleneck::compute) << "nobody waits for that rank";
  EXPECT_EQ(plan::find_bottleneck(with({}, Axis::tp, 0.05)).what, Bottleneck::messages) << "the limit itself counts";
}

}  // namespace
