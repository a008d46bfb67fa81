// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/run_plan.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::engine {

namespace {

static_assert(Executor<float>::sends_in_flight == execution.sends_in_flight &&
              Executor<double>::sends_in_flight == execution.sends_in_flight);

constexpr std::size_t most_bytes = std::size_t{1} << 60;

template <class T>
void add_activations(config::Config const& c, RunPlan const& plan, int pipeline_rank, plan::MemoryPrediction& m) {
  std::size_t slots = 0;
  for (int s : plan.stages.stages_of(pipeline_rank))
    slots = std::min(most_bytes, slots + model::Stage<T>::bytes(c, plan.stages, s, num_slots(plan, s)));
  bool const with_loss = plan.stages.pipeline_rank(plan.stages.num_stages() - 1) == pipeline_rank;
  if (slots >= most_bytes)
    throw base::Error({.expected = "activations that some memory could hold",
                       .found = fmt::format("more than {} on pipeline rank {}",
                                            base::human_bytes(static_cast<double>(most_bytes)), pipeline_rank),
                       .where = "batch.micro, batch.microbatches, model.seq_len, model.hidden, model.layers",
                       .fix = "lower one of them"},
                      base::ExitCode::bad_input);
  m.activations = static_cast<std::int64_t>(slots);
  m.workspace = static_cast<std::int64_t>(model::Workspace<T>::bytes(c, with_loss));
}

/// Refuses what no memory holds.
plan::MemoryPrediction predict_memory(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  auto m = plan::predict_state_memory(c, plan.table, plan.stages, pipeline_rank);
  if (c.run.precision == config::Precision::fp64) {
    add_activations<double>(c, plan, pipeline_rank, m);
  } else {
    add_activations<float>(c, plan, pipeline_rank, m);
  }
  return m;
}

}  // namespace

RunPlan make_run_plan(config::Config const& c) {
  auto pipeline = plan::plan_pipeline(
      c, [&](auto const& stages, auto const& program) { return rank_bytes(c, stages, program); }, execution);
  auto plan = make_run_plan(c, std::move(pipeline.stages), std::move(pipeline.program));
  plan.schedule_note = std::move(pipeline.reason);
  return plan;
}

std::vector<double> rank_bytes(config::Config const& c, layout::StageMap const& stages,
                               schedule::Program const& training) {
  auto const plan = make_run_plan(c, stages, {training, execution});
  std::vector<double> bytes;
  for (auto const& m : plan.memory) bytes.push_back(static_cast<double>(m.total()));
  return bytes;
}

RunPlan make_run_plan(config::Config const& c, layout::StageMap stages, schedule::ValidProgram training) {
  P3D_REQUIRE(training.execution() == execution, "the program is proved for what the executor does");
  P3D_REQUIRE(training->num_microbatches == c.batch.microbatches, "the program has the input's number of microbatches");
  P3D_REQUIRE(training->num_ranks == c.parallel.pp, "the program has the input's number of pipeline ranks");
  P3D_REQUIRE(stages.num_layers() == c.model.layers, "the stages hold the model's layers");
  P3D_REQUIRE(stages.num_stages() == training->num_stages, "the program has the stages of the map");
  for (int s = 0; s < training->num_stages; ++s) {
    P3D_REQUIRE(stages.pipeline_rank(s) == schedule::rank_of(training, s), "program and map place stages alike");
  }
  auto evaluation = schedule::forward_only(training, training->num_microbatches);
  auto probe = schedule::forward_only(training, 1);
  RunPlan plan{layout::RankGrid({c.parallel.dp, c.parallel.tp, c.parallel.pp}, layout::parse_order(c.parallel.order)),
               layout::make_param_table(c),
               std::move(stages),
               std::move(training),
               std::move(evaluation),
               std::move(probe),
               "",
               {}};
  for (int r = 0; r < c.parallel.pp; ++r) plan.memory.push_back(predict_memory(c, plan, r));
  return plan;
}

int num_slots(RunPlan const& plan, int stage) {
  auto const at = static_cast<std::size_t>(stage);
  return std::max({plan.training->num_slots[at], plan.evaluation->num_slots[at], plan.probe->num_slots[at]});
}

std::int64_t first_sample(config::Config const& c, std::int64_t step, int dp, int microbatch) {
  return step * c.batch.global + dp * (c.batch.global / c.parallel.dp) + microbatch * c.batch.micro;
}

}  // namespace p3d::engine
