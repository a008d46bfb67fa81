#include <p3d/runtime/run_plan.hpp>

#include <p3d/model/stage.hpp>
#include <p3d/schedule/registry.hpp>

namespace p3d::runtime {

namespace {

/// Forward actions only, `microbatches` of them, with slots and messages.
schedule::Program forward_only(schedule::Program const& training, int microbatches) {
  schedule::Program p;
  p.num_stages = training.num_stages;
  p.num_ranks = training.num_ranks;
  p.num_microbatches = microbatches;
  p.stage_rank = training.stage_rank;
  p.ranks.resize(static_cast<std::size_t>(p.num_ranks));
  for (int m = 0; m < microbatches; ++m) {
    for (int s = 0; s < p.num_stages; ++s) {
      p.ranks[static_cast<std::size_t>(p.stage_rank[static_cast<std::size_t>(s)])].push_back(
          {.op = schedule::Op::forward, .stage = s, .microbatch = m, .slot = -1});
    }
  }
  schedule::assign_slots(p);
  schedule::add_messages(p);
  return p;
}

schedule::Program training_program(config::Config const& c) {
  int const m = static_cast<int>(c.batch.microbatches);
  auto program = schedule::complete(schedule::generate(
      c.pipeline.schedule, {c.parallel.pp, m, c.pipeline.virtual_stages, c.pipeline.microbatch_group_size}));
  schedule::require_valid(program);
  return program;
}

}  // namespace

RunPlan make_run_plan(config::Config const& c) {
  auto training = training_program(c);
  auto evaluation = forward_only(training, static_cast<int>(c.batch.microbatches));
  auto probe = forward_only(training, 1);
  return {layout::RankGrid({c.parallel.dp, c.parallel.tp, c.parallel.pp}, layout::parse_order(c.parallel.order)),
          layout::make_param_table(c), layout::make_stage_map(c, training.stage_rank), std::move(training), std::move(evaluation), std::move(probe)};
}

std::int64_t first_sample(config::Config const& c, std::int64_t step, int dp, int microbatch) {
  return step * c.batch.global + dp * (c.batch.global / c.parallel.dp) + microbatch * c.batch.micro;
}

std::size_t activation_bytes(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  std::size_t bytes = 0;
  for (int stage : plan.stages.stages_of(pipeline_rank)) {
    int const slots = plan.training.num_slots[static_cast<std::size_t>(stage)];
    bytes += c.run.precision == config::Precision::fp64 ? model::Stage<double>::bytes(c, plan.stages, stage, slots)
                                                        : model::Stage<float>::bytes(c, plan.stages, stage, slots);
  }
  return bytes;
}

}  // namespace p3d::runtime
