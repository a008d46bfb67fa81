// SPDX-License-Identifier: Apache-2.0
// Says whether the steps of an input can follow each other without a flush, and makes the program of some of them. What
// prevents it has one list here: whatever makes a rank wait for the others at the end of a step, or changes between two
// steps what forwards read. An example: what the router of experts keeps changes with the load of a step, which is
// known when all ranks have ended it; to wait for that is the flush again.

#include <p3d/plan/pipeline.hpp>
#include <p3d/plan/run_plan.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/schedule/passes.hpp>
#include <p3d/schedule/registry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace p3d::plan {

namespace {

/// Names what in an input makes the pipeline empty between steps, in words that follow "because of"; empty: nothing
/// does.
std::string prevents(config::Config const& c) {
  auto const& m = c.memory;
  for (auto const& [found, cause] : std::initializer_list<std::pair<bool, char const*>>{
           {c.latest_delay() == 0, "optimizer.delay = 0: a step reads what the one before it made"},
           {c.latest_delay() > 1 && !c.mixes_delays(),
            "optimizer.delay above 1: a pipeline has use for 1, or for delays by stage (schedule = \"pipedream\")"},
           {c.mixes_delays() && c.pipeline.schedule == "auto", "pipeline.schedule = \"auto\" beside pipeline.delays"},
           {c.mixes_delays() && c.optimizer.grad_clip > 0,
            "optimizer.grad_clip: the last stage, whose gradients are not late, would wait for the norm of all"},
           {c.mixes_delays() && c.model.tied_embeddings,
            "model.tied_embeddings: the first stage and the last one wait for each other"},
           {m.shard != config::Shard::none, "memory.shard: the newest weights lie in parts"},
           {m.offload_optimizer != config::OffloadTo::none,
            "memory.offload_optimizer: the newest weights lie elsewhere"},
           {m.offloads_parameters(), "memory.offload_parameters: weights lie elsewhere"},
           {m.offload_activations != config::OffloadTo::none, "memory.offload_activations"},
           {m.recompute_microbatches_kept > 0, "memory.recompute_microbatches_kept: slots change their places"},
           {c.pipeline.weight_deferral_limit > 0, "pipeline.weight_deferral_limit: weight gradients wait for the end"},
           {c.divides_vocabulary(), "pipeline.vocab_parallel: losses are summed over the pipeline"},
           {c.model.mtp.on(), "model.mtp: its blocks read the embedding on the last stage"},
           {c.model.moe.on(), "model.moe: what experts were chosen changes the next step"},
           {c.interleaves(), "comm.overlap_tp = \"microbatch\": forwards and backwards interleave"},
           {c.precision.loss_scaling != config::LossScaling::none, "precision.loss_scale: an update may be skipped"},
           {c.data.eod_mask_loss || c.data.pack || c.batch.variable,
            "targets that do not count (data.eod_mask_loss, data.pack, batch.variable): they are counted first"},
           {c.compresses(), "comm.compress: a step begins when the gradients of the one before it have been sent"},
           {c.pipeline.p2p == config::P2p::ring, "pipeline.p2p = \"ring\": the rounds of a step end with it"},
           {c.timers.barrier, "timers.barrier = true: ranks begin steps together"},
           {c.run.trace, "run.trace = true: a step is recorded from its begin to its end"},
           {c.pipeline.schedule == "file", "pipeline.schedule = \"file\": the file has one step"}})
    if (found) return cause;
  return "";
}

/// Says how many steps early the forwards of each stage may be: as many as its gradients are late. Empty, with the
/// reason in `cause`, where those of a stage are not equally late.
std::vector<int> stage_delays(config::Config const& c, layout::StageMap const& stages, std::string& cause) {
  std::vector<int> out;
  for (int s = 0; s < stages.num_stages(); ++s) {
    std::set<std::int64_t> found;
    auto const layers = stages.layers(s);
    for (auto l = layers.begin; l < layers.end; ++l) found.insert(c.delay_of(l));
    if (stages.is_first(s)) found.insert(c.delay_of(-1));
    if (stages.is_last(s)) found.insert(c.delay_of(c.model.layers));
    if (found.size() > 1) {
      cause = fmt::format("pipeline.delays: stage {} has layers of {} and of {}", s, *found.begin(), *found.rbegin());
      return {};
    }
    out.push_back(static_cast<int>(*found.begin()));
  }
  return out;
}

}  // namespace

bool may_stream(config::Config const& c) {
  return c.parallel.pp > 1 && c.pipeline.flush != config::Flush::always && prevents(c).empty();
}

StreamPlan plan_stream(config::Config const& c, PipelinePlan const& pipeline, schedule::Execution execution) {
  constexpr auto key = "pipeline.flush";
  if (c.parallel.pp == 1 || c.pipeline.flush == config::Flush::always) return {};
  auto cause = prevents(c);
  std::vector<int> ahead;
  if (cause.empty()) ahead = stage_delays(c, pipeline.stages, cause);
  int const num_steps = ahead.empty() ? 0 : schedule::stream_steps(*std::max_element(ahead.begin(), ahead.end()));
  auto const forwards = std::int64_t{num_steps} * pipeline.stages.num_stages() * c.batch.microbatches;
  if (cause.empty() && forwards > schedule::most_forwards)
    cause =
        fmt::format("its size: {} steps have {} forwards, more than {}", num_steps, forwards, schedule::most_forwards);
  auto const& stages = pipeline.stages;
  if (cause.empty() && c.model.tied_embeddings &&
      stages.pipeline_rank(0) == stages.pipeline_rank(stages.num_stages() - 1))
    cause = fmt::format("pipeline.schedule = \"{}\": one rank has both ends of a tied embedding", pipeline.schedule);
  StreamPlan out;
  if (cause.empty()) {
    auto const* generator = schedule::find_generator(pipeline.schedule);
    P3D_REQUIRE(generator != nullptr, "the schedule has a generator");
    auto const m = static_cast<int>(c.batch.microbatches);
    schedule::Shape const shape{c.parallel.pp, num_steps * m,
                                generator->any_stages_per_rank ? pipeline.stages.num_stages() / c.parallel.pp : 0,
                                generator->any_group_size ? c.pipeline.microbatch_group_size : 0};
    auto steps = schedule::generate(pipeline.schedule, shape);
    P3D_REQUIRE(steps.num_stages == pipeline.stages.num_stages(), "stages do not depend on the number of microbatches");
    schedule::finish_weight_gradients(steps, m);
    steps = schedule::apply_passes(std::move(steps), {.slot_lookahead = c.pipeline.lookahead, .execution = execution});
    std::string why;
    out.stream = schedule::make_stream({std::move(steps), execution}, ahead, why);
    if (!out.stream) cause = fmt::format("pipeline.schedule = \"{}\": {}", pipeline.schedule, why);
  }
  if (out.stream) {
    out.note = "no flush between steps: a rank begins the next step while others end this one";
  } else if (c.pipeline.flush == config::Flush::never) {
    base::refuse({.expected = "steps that can follow each other without a flush (pipeline.flush = \"never\")",
                  .found = cause,
                  .where = key,
                  .fix = "set pipeline.flush to \"auto\", which empties the pipeline here, or change what was found"});
  } else if (c.latest_delay() > 0) {
    out.note = fmt::format("the pipeline empties between steps, because of {}", cause);
  }
  return out;
}

double planned_bubble(RunPlan const& plan, PipelineCosts const& costs) {
  auto const one = simulate(plan.training, costs, plan.training.execution());
  if (!plan.stream) return one.bubble();
  auto const all = simulate(plan.stream->steps, costs, plan.stream->steps.execution());
  int const steps = plan.stream->steps->num_microbatches / plan.stream->microbatches;
  double const step = (all.makespan - one.makespan) / (steps - 1);
  return 1.0 - one.busy() / (static_cast<double>(one.ranks.size()) * step);
}

}  // namespace p3d::plan
