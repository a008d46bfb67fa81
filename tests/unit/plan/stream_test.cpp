// SPDX-License-Identifier: Apache-2.0
// Whether a pipeline empties between steps: what makes it, what is said, and what a step costs.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>

#include <gtest/gtest.h>

#include <functional>

using namespace p3d;

namespace {

config::Config late(int pp, int microbatches, std::string const& schedule = "1f1b") {
  config::Config c;
  c.model.layers = 8;
  c.model.tied_embeddings = false;
  c.parallel.pp = pp;
  c.batch.microbatches = c.batch.global = microbatches;
  c.pipeline.schedule = schedule;
  c.optimizer.delay = 1;
  return c;
}

TEST(PlanStream, NamesWhatMakesThePipelineEmpty) {
  using Change = std::function<void(config::Config&)>;
  for (auto const& [word, change] : std::vector<std::pair<std::string, Change>>{
           {"optimizer.delay = 0", [](auto& c) { c.optimizer.delay = 0; }},
           {"memory.shard", [](auto& c) { c.memory.shard = config::Shard::optimizer; }},
           {"memory.offload_optimizer", [](auto& c) { c.memory.offload_optimizer = config::OffloadTo::disk; }},
           {"memory.offload_activations", [](auto& c) { c.memory.offload_activations = config::OffloadTo::disk; }},
           {"memory.recompute_microbatches_kept", [](auto& c) { c.memory.recompute_microbatches_kept = 1; }},
           {"pipeline.weight_deferral_limit", [](auto& c) { c.pipeline.weight_deferral_limit = 1; }},
           {"pipeline.vocab_parallel", [](auto& c) { c.pipeline.vocab_parallel = true; }},
           {"model.mtp", [](auto& c) { c.model.mtp.depth = 1; }},
           {"model.moe", [](auto& c) { c.model.moe.experts = 4; }},
           {"precision.loss_scale", [](auto& c) { c.precision.loss_scaling = config::LossScaling::dynamic; }},
           {"targets that do not count", [](auto& c) { c.data.pack = true; }},
           {"targets that do not count", [](auto& c) { c.data.eod_mask_loss = true; }},
           {"targets that do not count", [](auto& c) { c.batch.variable = true; }},
           {"run.trace", [](auto& c) { c.run.trace = true; }},
           {"its size", [](auto& c) { c.batch.microbatches = 300000; }},
           {"\"v_min\": one rank has both ends of a tied embedding",
            [](auto& c) {
              c.pipeline.schedule = "v_min";
              c.model.tied_embeddings = true;
            }},
           {"pipeline.p2p", [](auto& c) { c.pipeline.p2p = config::P2p::ring; }},
           {"timers.barrier", [](auto& c) { c.timers.barrier = true; }},
           {"optimizer.delay above 1", [](auto& c) { c.optimizer.delay = 2; }},
           {"optimizer.grad_clip",
            [](auto& c) {
              c.pipeline.delays = {1, 0};
              c.optimizer.grad_clip = 1.0;
            }},
           {"model.tied_embeddings",
            [](auto& c) {
              c.pipeline.delays = {1, 0, 0, 1};
              c.optimizer.grad_clip = 0.0;
              c.model.tied_embeddings = true;
            }},
           {"pipeline.delays: stage 0 has layers of 0 and of 1",
            [](auto& c) {
              c.pipeline.delays = {1, 0, 0, 0};
              c.optimizer.grad_clip = 0.0;
            }},
           {"\"gpipe\": on pipeline rank 0", [](auto& c) { c.pipeline.schedule = "gpipe"; }}}) {
    auto c = late(2, 4);
    change(c);
    auto steps = late(2, 4, c.pipeline.schedule);
    auto const pipeline = plan::plan_pipeline(steps, {}, plan::execution);
    auto const made = plan::plan_stream(c, pipeline, plan::execution);
    EXPECT_FALSE(made.stream) << word;
    if (c.latest_delay() > 0) {
      EXPECT_NE(made.note.find("because of " + (word[0] == '"' ? "pipeline.schedule = " + word : word)),
                std::string::npos)
          << made.note;
    }
    if (c.latest_delay() == 0) {
      EXPECT_EQ(made.note, "");
    }
    c.pipeline.flush = config::Flush::never;
    try {
      plan::plan_stream(c, pipeline, plan::execution);
      ADD_FAILURE() << word;
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_NE(e.text().found.find(word), std::string::npos) << e.text().found;
      EXPECT_EQ(e.text().where, "pipeline.flush");
    }
  }
}

TEST(PlanStream, FollowsTheKey) {
  auto c = late(2, 4);
  auto const streams = [&] { return plan::make_run_plan(c, plan::Platform{}).stream.has_value(); };
  EXPECT_TRUE(streams());
  c.pipeline.flush = config::Flush::always;
  EXPECT_FALSE(streams());
  EXPECT_EQ(plan::make_run_plan(c, plan::Platform{}).flush_note, "");
  c = late(1, 4);
  c.pipeline.flush = config::Flush::never;  // there is nothing to empty
  EXPECT_FALSE(streams());
  c = late(2, 4, "auto");
  EXPECT_EQ(streams(), plan::make_run_plan(c, plan::Platform{}).flush_note.starts_with("no flush"));
}

// Of even stages nothing is lost between two steps; with a flush it is (p - 1) / (m + p - 1).
TEST(PlanStream, NothingIsLostBetweenSteps) {
  for (auto const& [pp, m] : {std::pair{4, 1}, {8, 1}, {4, 2}, {4, 4}}) {
    auto c = late(pp, m, "pipedream");
    c.optimizer.grad_clip = 0.0;
    c.optimizer.delay = 0;
    plan::PipelineCosts even;
    even.stages.assign(static_cast<std::size_t>(pp), {.forward = 1, .input = 1, .weight = 1});
    auto const plan = plan::make_run_plan(c, plan::Platform{});
    ASSERT_TRUE(plan.stream) << plan.flush_note;
    EXPECT_NEAR(plan::planned_bubble(plan, even), 0.0, 1e-12) << "PipeDream, " << pp << " " << m;
  }
  for (auto const& [pp, m] : {std::pair{2, 2}, {4, 4}, {4, 3}, {8, 16}}) {
    auto c = late(pp, m);
    plan::PipelineCosts even;
    even.stages.assign(static_cast<std::size_t>(pp), {.forward = 1, .input = 1, .weight = 1});
    auto const plan = plan::make_run_plan(c, plan::Platform{});
    ASSERT_TRUE(plan.stream);
    EXPECT_NEAR(plan::planned_bubble(plan, even), 0.0, 1e-12) << pp << " " << m;
    c.pipeline.flush = config::Flush::always;
    EXPECT_NEAR(plan::planned_bubble(plan::make_run_plan(c, plan::Platform{}), even), (pp - 1.0) / (m + pp - 1.0),
                1e-12);
  }
}

// One more gradient, and in 16 bits the newest weights once more.
TEST(PlanStream, TakesTheMemoryOfGradientsThatWait) {
  for (auto precision : {config::Precision::fp32, config::Precision::bf16}) {
    auto c = late(2, 4);
    c.run.precision = precision;
    auto const with = plan::make_run_plan(c, plan::Platform{});
    c.pipeline.flush = config::Flush::always;
    auto const without = plan::make_run_plan(c, plan::Platform{});
    for (int r = 0; r < 2; ++r) {
      auto const a = with.memory_of(r), b = without.memory_of(r);
      EXPECT_EQ(a.grads, 2 * b.grads);
      EXPECT_EQ(a.params, (precision == config::Precision::bf16 ? 2 : 1) * b.params);
      EXPECT_EQ(a.optimizer, b.optimizer);
      EXPECT_EQ(a.activations, b.activations);
    }
  }
}

}  // namespace
