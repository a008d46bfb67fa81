// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/run_plan.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/executor.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/layout/stage_buffers.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sharded_weights.hpp"

namespace p3d::engine {

namespace {

static_assert(Executor<device::Fp32>::sends_in_flight == execution.sends_in_flight);

constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

void add_activations(config::Config const& c, RunPlan const& plan, int pipeline_rank, plan::MemoryPrediction& m) {
  auto const types = plan::type_bytes(c);
  layout::ElementBytes const e{types.storage, types.master};
  std::int64_t slots = 0;
  layout::RecomputeScratch recompute;
  for (int s : plan.stages.stages_of(pipeline_rank)) {
    auto const& sets = plan.activations[static_cast<std::size_t>(s)];
    slots = std::min(most_bytes, slots + layout::stage_bytes(c, plan.stages, s, sets, e).total());
    m.offloaded_activations += layout::offloaded_file_bytes(c, plan.stages, s, sets, e);
    recompute.add(sets.recompute);
  }
  if (c.divides_vocabulary()) slots = std::min(most_bytes, slots + layout::vocabulary_bytes(c, e).total());
  bool const with_loss = has_loss(c, plan.stages, pipeline_rank);
  if (slots >= most_bytes)
    throw base::Error({.expected = "activations that some memory could hold",
                       .found = fmt::format("more than {} on pipeline rank {}",
                                            base::human_bytes(static_cast<double>(most_bytes)), pipeline_rank),
                       .where = "batch.micro, batch.microbatches, model.seq_len, model.hidden, model.layers",
                       .fix = "lower one of them"},
                      base::ExitCode::bad_input);
  m.activations = slots;
  m.workspace =
      workspaces_of(c) * layout::workspace_bytes(c, recompute, with_loss, e, kernels::have_device_form()).total();
}

std::vector<layout::StageActivations> stage_activations(config::Config const& c, RunPlan const& plan) {
  auto const split =
      schedule::split_backwards_at_a_time(plan.training, static_cast<int>(c.memory.recompute_microbatches_kept));
  auto const away = schedule::offloaded_activations(plan.training);
  std::vector<layout::StageActivations> out;
  for (int s = 0; s < plan.stages.num_stages(); ++s) {
    auto const at = static_cast<std::size_t>(s);
    int const slots =
        std::max({plan.training->num_slots[at], plan.evaluation->num_slots[at], plan.probe->num_slots[at]});
    auto recompute = layout::stage_recompute(c.memory, plan.stages, s);
    int const sets = away[at].places > 0 ? slots : split[at];
    int const rebuilt = recompute.any() && split[at] > 0 ? sets : 0;
    out.push_back({slots, rebuilt, std::move(recompute), away[at].places, away[at].with_gradients});
  }
  return out;
}

bool divides_sequences(layout::PerAxis const& sizes) { return sizes.cp > 1; }

/// Elements of the longest state of a stage of these ranks.
std::int64_t longest_owned(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  auto const here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  std::int64_t longest = 0;
  for (int s : plan.stages.stages_of(pipeline_rank)) {
    layout::StageParams const params(plan.table, plan.stages, s, plan.grid.sizes(), here);
    longest = std::max(longest, plan::owned_elements(c, params, here));
  }
  return longest;
}

/// A build whose Views are host memory has nowhere else to offload to but a disk.
void require_somewhere(config::Config const& c) {
  auto const& m = c.memory;
  for (auto const& [key, place] : {std::pair("memory.offload_optimizer", m.offload_optimizer),
                                   std::pair("memory.offload_parameters", m.offload_parameters),
                                   std::pair("memory.offload_activations", m.offload_activations)}) {
    if (place != config::OffloadTo::host || !std::is_same_v<device::MemSpace, device::HostSpace>) continue;
    throw base::Error(
        {.expected = "\"none\" or \"disk\": this build of p3d computes on the host, whose memory would be "
                     "offloaded to itself",
         .found = "\"host\"",
         .where = key,
         .fix = "choose \"disk\", or use a build for GPUs"},
        base::ExitCode::bad_input);
  }
}

/// Groups that NCCL would make communicators of.
int nccl_communicators(config::Config const& c, RunPlan const& plan) {
  if (!comm::has_nccl()) return 0;
  auto const sets = communicator_sets(plan.table, plan.grid.sizes(), c.memory.divides());
  return static_cast<int>(
      std::count_if(sets.begin(), sets.end(), [&](auto const& set) { return plan.grid.group_size(set) > 1; }));
}

/// Refuses what no memory holds.
plan::MemoryPrediction predict_memory(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  auto m = plan::predict_state_memory(c, plan.table, plan.stages, pipeline_rank,
                                      plan.pools[static_cast<std::size_t>(pipeline_rank)]);
  add_activations(c, plan, pipeline_rank, m);
  if (m.offloaded > 0) {
    auto const longest = longest_owned(c, plan, pipeline_rank);
    with_policy(c, [&](auto policy) {
      using P = decltype(policy);
      using Rooms = typename ShardedWeights<P>::Rooms;
      m.staging = OffloadedState<P>::Staging::bytes(offloaded_parts<P>(c), OffloadedState<P>::longest(longest));
      if (c.memory.offloads_parameters() && Rooms::needed(c.memory.divides())) m.staging += Rooms::bytes(longest);
    });
  }
  if (config::is_16bit(c.run.precision) && device::on_host()) {
    // `p3d --check` plans before Kokkos knows its threads: then for one.
    int const threads = Kokkos::is_initialized() ? device::host_threads() : 1;
    m.panels = threads * (base::panel_floats * static_cast<std::int64_t>(sizeof(float)) +
                          base::attention_panel_bytes(c.model.seq_len, c.model.head_dim()));
  }
  if (!device::on_host()) m.libraries = plan::gpu_library_bytes(nccl_communicators(c, plan));
  return m;
}

}  // namespace

schedule::Execution execution_of(config::Config const& c) {
  auto out = execution;
  out.pairs = c.comm.overlap_experts;
  return out;
}

bool has_loss(config::Config const& c, layout::StageMap const& stages, int pipeline_rank) {
  return c.divides_vocabulary() || stages.pipeline_rank(stages.num_stages() - 1) == pipeline_rank;
}

int workspaces_of(config::Config const& c) { return c.comm.overlap_experts ? 2 : 1; }

void require_supported(schedule::Program const& program, bool moves_weights, bool moves_activations) {
  auto const refuse = [](schedule::Action const& a, char const* expected, char const* fix) {
    throw base::Error(
        {.expected = expected, .found = schedule::to_string(a), .where = "the schedule (pipeline.file)", .fix = fix},
        base::ExitCode::bad_input);
  };
  for (auto const& actions : program.ranks) {
    bool updates = false;
    for (auto const& a : actions) {
      if (!moves_weights && (schedule::moves_weights(a.op) || a.op == schedule::Op::reduce_scatter_gradients))
        refuse(a, "a schedule for weights that stay whole on their ranks",
               "leave out GATHER, RELEASE, OFFLOAD and RELOAD, and write REDUCE for REDUCE_SCATTER");
      if (!moves_activations && schedule::moves_activations(a.op))
        refuse(a, "a schedule for activations that stay in memory",
               "leave out OFFLOAD_F and RELOAD_F, or set memory.offload_activations");
      if (updates && (schedule::computes(a.op) || schedule::reduces(a.op)))
        refuse(a, "updates (STEP) after all that a rank computes and reduces: all need the norm of the whole gradient",
               "move the STEPs to the end");
      updates = updates || a.op == schedule::Op::stage_step;
    }
  }
}

namespace {

/// What the actions on the weights of a stage say about them.
char const* named(schedule::WeightHome home) {
  switch (home) {
    case schedule::WeightHome::resident: return "whole all the time";
    case schedule::WeightHome::sharded: return "gathered and released (GATHER, RELEASE)";
    case schedule::WeightHome::offloaded: return "brought and taken away (RELOAD, OFFLOAD)";
  }
  return "";
}

/// Refuses a schedule from a file that says otherwise than the keys of [memory] who holds the weights, and when
/// gradients are reduced.
void require_agreement(config::Config const& c, schedule::Program const& program) {
  auto const refuse = [&](std::string expected, std::string found, std::string fix) {
    throw base::Error({.expected = std::move(expected),
                       .found = fmt::format("{} in {}", found, c.pipeline.file),
                       .where = "pipeline.file",
                       .fix = std::move(fix)},
                      base::ExitCode::bad_input);
  };
  auto const& m = c.memory;
  using schedule::WeightHome;
  auto const wanted = m.divides()               ? WeightHome::sharded
                      : m.offloads_parameters() ? WeightHome::offloaded
                                                : WeightHome::resident;
  auto const homes = schedule::weight_homes(program);
  for (std::size_t s = 0; s < homes.size(); ++s)
    if (homes[s] != wanted)
      refuse(fmt::format("weights of every stage that are {}, as memory.shard = \"{}\" and memory.offload_parameters = "
                         "\"{}\" want",
                         named(wanted), to_string(m.shard), to_string(m.offload_parameters)),
             fmt::format("weights of stage {} that are {}", s, named(homes[s])),
             "write the schedule so, change these keys, or leave all actions on weights out: then p3d adds them");
  std::vector<int> reductions(homes.size());
  for (auto const& actions : program.ranks)
    for (auto const& a : actions)
      if (schedule::reduces(a.op)) ++reductions[static_cast<std::size_t>(a.stage)];
  auto const most = std::max_element(reductions.begin(), reductions.end());
  auto const stage = most - reductions.begin();
  if (m.reduce == config::MessageEvery::step && *most > 1)
    refuse("one reduction of the gradients of each stage (memory.reduce = \"step\")",
           fmt::format("{} of stage {}", *most, stage),
           "set memory.reduce to \"microbatch\", and memory.shard to \"gradients\" or \"parameters\"; or reduce each "
           "stage once");
  if (m.reduce == config::MessageEvery::microbatch && *most == 1 && program.num_microbatches > 1)
    refuse("reductions after each microbatch (memory.reduce = \"microbatch\")", "one for each stage",
           "set memory.reduce to \"step\", or write REDUCE_SCATTER after each B and W");
}

}  // namespace

RunPlan make_run_plan(config::Config const& c) {
  require_somewhere(c);
  auto pipeline = plan::plan_pipeline(
      c, [&](auto const& stages, auto const& program) { return rank_bytes(c, stages, program); }, execution_of(c));
  require_supported(pipeline.program, c.memory.divides() || c.memory.moves_weights(),
                    c.memory.offload_activations != config::OffloadTo::none);
  if (c.pipeline.schedule == "file") require_agreement(c, pipeline.program);
  auto plan = make_run_plan(c, std::move(pipeline.stages), std::move(pipeline.program));
  plan.schedule_note = std::move(pipeline.reason);
  return plan;
}

std::vector<double> rank_bytes(config::Config const& c, layout::StageMap const& stages,
                               schedule::Program const& training) {
  auto const plan = make_run_plan(c, stages, {training, execution_of(c)});
  std::vector<double> bytes;
  for (auto const& m : plan.memory) bytes.push_back(static_cast<double>(m.total()));
  return bytes;
}

RunPlan make_run_plan(config::Config const& c, layout::StageMap stages, schedule::ValidProgram training) {
  P3D_REQUIRE(training.execution() == execution_of(c), "the program is proved for what the executor does");
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
               ""};
  plan.activations = stage_activations(c, plan);
  for (int r = 0; r < c.parallel.pp; ++r) {
    plan.pools.push_back(plan::make_state_pools(
        c, plan.table, plan.stages, r, plan.training,
        {&static_cast<schedule::Program const&>(plan.evaluation), &static_cast<schedule::Program const&>(plan.probe)}));
    plan.memory.push_back(predict_memory(c, plan, r));
  }
  return plan;
}

double recompute_flops_per_step(config::Config const& c, RunPlan const& plan) {
  std::vector<double> per_token;
  for (int s = 0; s < plan.stages.num_stages(); ++s)
    per_token.push_back(plan::recompute_flops_per_token(c, plan.activations[static_cast<std::size_t>(s)].recompute,
                                                        plan.stages.layers(s).begin, plan::Keys::all));
  double sum = 0.0;
  for (auto const& actions : plan.training->ranks)
    for (auto const& a : actions) {
      auto const s = static_cast<std::size_t>(a.stage);
      if (schedule::makes_input_gradient(a.op) && a.slot >= plan.activations[s].recompute.slots_kept)
        sum += per_token[s];
    }
  return sum * static_cast<double>(c.batch.micro * c.model.seq_len * c.parallel.dp);  // cp divides them
}

double offloaded_bytes_per_step(config::Config const& c, RunPlan const& plan) {
  auto const types = plan::type_bytes(c);
  layout::ElementBytes const e{types.storage, types.master};
  double most = 0.0;
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto const& actions = plan.training->ranks[static_cast<std::size_t>(r)];
    auto const gradients = schedule::moves_gradients(plan.training, r);
    std::map<std::pair<int, bool>, double> bytes;  // of a move, by stage and whether with gradients
    double sum = 0.0;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!schedule::moves_activations(actions[i].op)) continue;
      int const s = actions[i].stage;
      auto const [each, added] = bytes.try_emplace({s, gradients[i]}, 0.0);
      if (added)
        each->second = static_cast<double>(
            layout::offloaded_bytes(c, plan.stages, s, plan.activations[static_cast<std::size_t>(s)], e, gradients[i]));
      sum += each->second;
    }
    most = std::max(most, sum);
  }
  return most;
}

layout::AxisSet gather_axes(layout::ParamSpec const& spec, bool divided) {
  auto const axes = spec.repeated_axes().plus(spec.split_axes()).plus(layout::Axis::pp);
  return divided ? axes.plus(spec.gradient_axes()) : axes;
}

layout::AxisSet vocabulary_axes(layout::PerAxis const& sizes) {
  return sizes.tp > 1 ? layout::AxisSet{layout::Axis::tp, layout::Axis::pp} : layout::AxisSet{layout::Axis::pp};
}

layout::AxisSet expert_exchange_axes(layout::PerAxis const& sizes) {
  layout::AxisSet out;
  for (auto a : layout::AxisSet{layout::Axis::etp, layout::Axis::ep}.list()) {
    if (sizes[a] > 1) out = out.plus(a);
  }
  return out;
}

std::vector<layout::AxisSet> communicator_sets(layout::ParamTable const& table, layout::PerAxis const& sizes,
                                               bool divided) {
  std::vector<layout::AxisSet> out{layout::Axis::tp, layout::Axis::pp};
  if (divides_sequences(sizes))  // attention; counts of targets
    for (auto a : layout::token_axes.list()) out.emplace_back(a);
  if (std::any_of(table.specs().begin(), table.specs().end(), [](auto const& spec) { return spec.over_pipeline(); }))
    out.push_back(vocabulary_axes(sizes));
  if (auto const experts = expert_exchange_axes(sizes); !experts.empty()) out.push_back(experts);
  for (auto const& spec : table.specs()) {
    auto const holders = divided ? spec.repeated_axes() : spec.replica_axes();
    for (auto set : {spec.gradient_axes(), holders, gather_axes(spec, divided)}) {
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
