// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/run_plan.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace p3d::engine {

namespace {

static_assert(Executor<device::Fp32>::sends_in_flight == execution.sends_in_flight);

constexpr std::size_t most_bytes = std::size_t{1} << 60;

template <class P>
void add_activations(config::Config const& c, RunPlan const& plan, int pipeline_rank, plan::MemoryPrediction& m) {
  std::size_t slots = 0;
  for (int s : plan.stages.stages_of(pipeline_rank))
    slots = std::min(most_bytes, slots + model::Stage<P>::bytes(c, plan.stages, s, num_slots(plan, s)));
  bool const with_loss = plan.stages.pipeline_rank(plan.stages.num_stages() - 1) == pipeline_rank;
  if (slots >= most_bytes)
    throw base::Error({.expected = "activations that some memory could hold",
                       .found = fmt::format("more than {} on pipeline rank {}",
                                            base::human_bytes(static_cast<double>(most_bytes)), pipeline_rank),
                       .where = "batch.micro, batch.microbatches, model.seq_len, model.hidden, model.layers",
                       .fix = "lower one of them"},
                      base::ExitCode::bad_input);
  m.activations = static_cast<std::int64_t>(slots);
  m.workspace = static_cast<std::int64_t>(model::Workspace<P>::bytes(c, with_loss));
}

/// Refuses what no memory holds.
plan::MemoryPrediction predict_memory(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  auto m = plan::predict_state_memory(c, plan.table, plan.stages, pipeline_rank);
  with_policy(c, [&](auto policy) { add_activations<decltype(policy)>(c, plan, pipeline_rank, m); });
  if (config::is_16bit(c.run.precision)) {
    // `p3d --check` plans before Kokkos knows its threads: then for one.
    int const threads = Kokkos::is_initialized() ? device::host_threads() : 1;
    kernels::AttentionShape shape;
    shape.rows.seq_len = c.model.seq_len;
    shape.head_dim = c.model.head_dim();
    m.panels =
        threads * (static_cast<std::int64_t>(linalg::gemm_workspace_bytes()) + kernels::attention_panel_bytes(shape));
  }
  return m;
}

}  // namespace

void require_supported(schedule::Program const& program, bool moves_weights) {
  auto const refuse = [](schedule::Action const& a, char const* expected, char const* fix) {
    throw base::Error(
        {.expected = expected, .found = schedule::to_string(a), .where = "the schedule (pipeline.file)", .fix = fix},
        base::ExitCode::bad_input);
  };
  for (auto const& actions : program.ranks) {
    std::set<int> scattered;
    bool updates = false;
    for (auto const& a : actions) {
      if (!moves_weights && (schedule::moves_weights(a.op) || a.op == schedule::Op::reduce_scatter_gradients))
        refuse(a, "a schedule for weights that stay whole on their ranks",
               "leave out GATHER, RELEASE, OFFLOAD and RELOAD, and write REDUCE for REDUCE_SCATTER");
      if (a.op == schedule::Op::reduce_scatter_gradients && !scattered.insert(a.stage).second)
        refuse(a, "one REDUCE_SCATTER for a stage", "keep the one after the stage's last backward action");
      if (updates && (schedule::is_compute(a.op) || schedule::reduces(a.op)))
        refuse(a, "updates (STEP) after all that a rank computes and reduces: all need the norm of the whole gradient",
               "move the STEPs to the end");
      updates = updates || a.op == schedule::Op::stage_step;
    }
  }
}

RunPlan make_run_plan(config::Config const& c) {
  auto pipeline = plan::plan_pipeline(
      c, [&](auto const& stages, auto const& program) { return rank_bytes(c, stages, program); }, execution);
  require_supported(pipeline.program, false);
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
  RunPlan plan{layout::RankGrid(c.parallel, layout::parse_order(c.parallel.order)),
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

layout::AxisSet gather_axes(layout::ParamSpec const& spec) {
  return spec.repeated_axes().plus(spec.split_axes()).plus(layout::Axis::pp);
}

std::vector<layout::AxisSet> communicator_sets(layout::ParamTable const& table, layout::PerAxis const& sizes) {
  std::vector<layout::AxisSet> out{layout::Axis::tp, layout::Axis::pp};
  for (auto const& spec : table.specs()) {
    for (auto set : {spec.gradient_axes(), spec.replica_axes(), gather_axes(spec)}) {
      for (auto a : set.list()) {
        if (sizes[a] == 1) set = set.minus(a);
      }
      if (std::find(out.begin(), out.end(), set) == out.end()) out.push_back(set);
    }
  }
  return out;
}

std::int64_t first_sample(config::Config const& c, std::int64_t step, int dp, int microbatch) {
  return step * c.batch.global + dp * (c.batch.global / c.parallel.dp) + microbatch * c.batch.micro;
}

}  // namespace p3d::engine
