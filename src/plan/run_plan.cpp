// SPDX-License-Identifier: Apache-2.0
// The plan of a run: programs from plan_pipeline, sets of activations from the neediest of them, memory from the tables
// of parameters and of buffers. Nothing here needs Kokkos or MPI, so a laptop plans 100,000 ranks. An example: a stage
// with 4 slots in training and 1 in the probe gets 4 sets of activations, and the probe uses the first.
#include <p3d/plan/run_plan.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/layout/communicators.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace p3d::plan {

namespace {

constexpr std::int64_t too_many_bytes = std::int64_t{1} << 60;

/// Refuses activations that no memory holds.
void require_some_memory(std::int64_t activations, int pipeline_rank) {
  if (activations < too_many_bytes) return;
  base::refuse({.expected = "activations that some memory could hold",
                .found = fmt::format("more than {} on pipeline rank {}",
                                     base::human_bytes(static_cast<double>(too_many_bytes)), pipeline_rank),
                .where = "batch.micro, batch.microbatches, model.seq_len, model.hidden, model.layers",
                .fix = "lower one of them"});
}

/// The sets of activations of every stage, and what it recomputes.
std::vector<layout::StageActivations> stage_activations(config::Config const& c, RunPlan const& plan) {
  auto const kept = static_cast<int>(c.memory.recompute_microbatches_kept);
  auto split = schedule::split_backwards_at_a_time(plan.training, kept);
  auto const streamed = plan.stream ? schedule::split_backwards_at_a_time(plan.stream->steps, kept) : split;
  auto const offloaded = schedule::offloaded_activations(plan.training);
  std::vector<layout::StageActivations> out;
  for (int s = 0; s < plan.stages.num_stages(); ++s) {
    auto const at = static_cast<std::size_t>(s);
    int slots = std::max({plan.training->num_slots[at], plan.evaluation->num_slots[at], plan.probe->num_slots[at]});
    if (plan.stream) slots = std::max(slots, plan.stream->steps->num_slots[at]);
    split[at] = std::max(split[at], streamed[at]);
    auto recompute = layout::stage_recompute(c.memory, plan.stages, s);
    int const sets = offloaded[at].places > 0 ? slots : split[at];
    int const rebuilt = recompute.any() && split[at] > 0 ? sets : 0;
    out.push_back({slots, rebuilt, std::move(recompute), offloaded[at].places, offloaded[at].with_gradients});
  }
  return out;
}

/// Elements of the longest state of a stage on the ranks of a pipeline coordinate.
std::int64_t longest_owned(config::Config const& c, RunPlan const& plan, int pipeline_rank) {
  auto const here = layout::PerAxis::only(layout::Axis::pp, pipeline_rank);
  std::int64_t longest = 0;
  for (int s : plan.stages.stages_of(pipeline_rank)) {
    layout::StageParams const params(plan.table, plan.stages, s, plan.grid.sizes(), here);
    longest = std::max(longest, owned_elements(c, params, here));
  }
  return longest;
}

/// Refuses to offload to the host in a build whose Views are host memory: it can only offload to a disk.
void require_somewhere(config::Config const& c, Platform const& platform) {
  auto const& m = c.memory;
  for (auto const& [key, place] : {std::pair("memory.offload_optimizer", m.offload_optimizer),
                                   std::pair("memory.offload_parameters", m.offload_parameters),
                                   std::pair("memory.offload_activations", m.offload_activations)}) {
    if (place != config::OffloadTo::host || platform.gpu) continue;
    base::refuse({.expected = "\"none\" or \"disk\": this build of p3d computes on the host, whose memory would be "
                              "offloaded to itself",
                  .found = "\"host\"",
                  .where = key,
                  .fix = "choose \"disk\", or use a build for GPUs"});
  }
}

/// The number of groups for which NCCL makes communicators.
int nccl_communicators(config::Config const& c, RunPlan const& plan, Platform const& platform) {
  if (!platform.nccl) return 0;
  auto const sets = layout::communicator_sets(plan.table, plan.grid.sizes(), c.memory.divides(), c.compresses());
  return static_cast<int>(
      std::count_if(sets.begin(), sets.end(), [&](auto const& set) { return plan.grid.group_size(set) > 1; }));
}

/// Bytes of the ranks of a pipeline coordinate. Refuses activations that no memory holds.
MemoryPrediction predict_memory(config::Config const& c, RunPlan const& plan, int pipeline_rank,
                                Platform const& platform) {
  auto m = predict_state_memory(c, plan.table, plan.stages, pipeline_rank,
                                plan.pools[static_cast<std::size_t>(pipeline_rank)]);
  if (plan.stream) add_stream_memory(c, plan.table, plan.stages, pipeline_rank, plan.stream->ahead, m);
  auto const buffers = activation_memory(c, plan, pipeline_rank, platform);
  m.activations = buffers.activations.total();
  m.workspace = buffers.workspace.total();
  m.offloaded_activations = buffers.offloaded;
  if (c.memory.offload_activations == config::OffloadTo::host) m.offloaded_to_host += buffers.offloaded;
  require_some_memory(m.activations, pipeline_rank);
  if (m.offloaded > 0) {
    auto const longest = longest_owned(c, plan, pipeline_rank);
    m.staging = staging_bytes(c, longest);
    if (c.memory.offloads_parameters() && (c.memory.divides() || !platform.host_reaches_views))
      m.staging += fetch_bytes(c, longest);
  }
  if (config::is_16bit(config::operand_precision(c)) && !platform.gpu) {
    m.panels = platform.threads * base::panel_floats * static_cast<std::int64_t>(sizeof(float));
    if (config::is_16bit(c.run.precision))
      m.panels +=
          platform.threads * base::attention_panel_bytes(c.model.seq_len, c.model.head_dim(), c.model.value_dim());
  }
  m.libraries =
      platform.gpu ? gpu_library_bytes(nccl_communicators(c, plan, platform), c.run.deterministic) : host_library_bytes;
  if (platform.gpu && platform.fused_attention) m.libraries += fused_attention_bytes(c);
  return m;
}

}  // namespace

ActivationMemory activation_memory(config::Config const& c, RunPlan const& plan, int pipeline_rank,
                                   Platform const& platform) {
  auto const e = element_bytes(c);
  ActivationMemory out;
  layout::RecomputeScratch recompute;
  for (int s : plan.stages.stages_of(pipeline_rank)) {
    auto const& sets = plan.activations[static_cast<std::size_t>(s)];
    out.activations += layout::stage_bytes(c, plan.stages, s, sets, e);
    out.offloaded += layout::offloaded_file_bytes(c, plan.stages, s, sets, e);
    recompute.add(sets.recompute);
  }
  if (!plan.stages.stages_own_vocabulary()) out.activations += layout::vocabulary_bytes(c, e);
  bool const with_loss = plan.stages.rank_has_head(pipeline_rank);
  auto const workspace = layout::workspace_bytes(c, recompute, with_loss, e, platform.device_form);
  for (int k = 0; k < workspaces_of(c); ++k) out.workspace += workspace;
  return out;
}

schedule::Execution execution_of(config::Config const& c) {
  auto out = execution;
  out.pairs = c.interleaves();
  out.waits_inside = c.parallel.product(layout::sample_axes) > 1 ||
                     (c.model.moe.on() && !layout::expert_exchange_axes(c.parallel).empty());
  switch (c.pipeline.p2p) {
    case config::P2p::separate: break;
    case config::P2p::batched: out.p2p = schedule::P2p::batched; break;
    case config::P2p::ring: out.p2p = schedule::P2p::ring; break;
  }
  return out;
}

int workspaces_of(config::Config const& c) { return c.interleaves() ? 2 : 1; }

void require_supported(schedule::Program const& program, bool moves_weights, bool moves_activations) {
  auto const refuse = [](schedule::Action const& a, char const* expected, char const* fix) {
    base::refuse(
        {.expected = expected, .found = schedule::to_string(a), .where = "the schedule (pipeline.file)", .fix = fix});
  };
  for (auto const& actions : program.ranks) {
    bool updates = false;
    for (auto const& a : actions) {
      if (!moves_weights && (schedule::moves_weights(a.op) || a.op == schedule::Op::reduce_scatter_gradients))
        refuse(a, "a schedule for resident weights, whole on their ranks",
               "leave out GATHER, RELEASE, OFFLOAD and RELOAD, and write REDUCE for REDUCE_SCATTER");
      if (!moves_activations && schedule::moves_activations(a.op))
        refuse(a, "a schedule for resident activations",
               "leave out OFFLOAD_F and RELOAD_F, or set memory.offload_activations");
      if (updates && (schedule::computes(a.op) || schedule::reduces(a.op)))
        refuse(a, "updates (STEP) after all that a rank computes and reduces: all need the norm of the whole gradient",
               "move the STEPs to the end");
      updates = updates || a.op == schedule::Op::stage_step;
    }
  }
}

namespace {

/// Where a stage's weights are, by the actions on them, in words.
char const* named(schedule::WeightHome home) {
  switch (home) {
    case schedule::WeightHome::resident: return "whole all the time";
    case schedule::WeightHome::sharded: return "gathered and released (GATHER, RELEASE)";
    case schedule::WeightHome::offloaded: return "reloaded and offloaded (RELOAD, OFFLOAD)";
  }
  return "";
}

/// Refuses a schedule from a file that contradicts the keys of [memory]: about who holds the weights, or when gradients
/// are reduced.
void require_agreement(config::Config const& c, schedule::Program const& program) {
  auto const refuse = [&](std::string expected, std::string found, std::string fix) {
    base::refuse({.expected = std::move(expected),
                  .found = fmt::format("{} in {}", found, c.pipeline.file),
                  .where = "pipeline.file",
                  .fix = std::move(fix)});
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

/// Refuses rounds whose messages are longer than one call of MPI carries.
void require_short_messages(config::Config const& c, layout::StageMap const& stages) {
  constexpr double most = 1 << 30;
  if (c.pipeline.p2p != config::P2p::ring || c.parallel.pp == 1) return;
  auto const bytes = model_costs(c, stages).message_bytes;
  if (bytes <= most) return;
  base::refuse({.expected = "messages between stages of 1 GiB at most (p2p = \"ring\")",
                .found = fmt::format("{}", base::human_bytes(bytes)),
                .where = "pipeline.p2p",
                .fix = "set pipeline.p2p to \"batched\" or \"separate\", or lower batch.micro"});
}

}  // namespace

/// Refuses gradients that comm.compress cannot compress: of an embedding that two stages add to apart, and by factors
/// that are no thinner than any matrix.
void require_compressible(config::Config const& c, layout::StageMap const& stages) {
  if (!c.compresses()) return;
  if (c.model.last_reads_embedding() && stages.stages_own_vocabulary() && !stages.shares_tied() &&
      stages.num_stages() > 1)
    base::refuse(
        {.expected = "an embedding that one stage reads where gradients are compressed",
         .found = fmt::format("one that the first and the last of {} stages read", stages.num_stages()),
         .where = c.model.tied_embeddings ? "model.tied_embeddings; comm.compress" : "model.mtp; comm.compress",
         .fix = "set pipeline.virtual_stages to 1 on one pipeline rank, pipeline.vocab_parallel to true on "
                "several, or comm.compress to \"none\""});
  auto const rank = c.comm.powersgd_rank;
  auto const table = layout::make_param_table(c);
  auto const is_thin = [&](auto const& spec) { return layout::is_low_rank(spec, rank); };
  if (c.comm.compress == config::Compress::powersgd &&
      std::none_of(table.specs().begin(), table.specs().end(), is_thin))
    base::refuse({.expected = "a rank with which two factors are at most half of some matrix",
                  .found = fmt::format("{}, for a model of width {}", rank, c.model.hidden),
                  .where = "comm.powersgd_rank",
                  .fix = fmt::format("set it to {} or less", std::max<std::int64_t>(1, (c.model.hidden - 1) / 4))});
}

RunPlan make_run_plan(config::Config const& c, Platform const& platform) {
  require_somewhere(c, platform);
  auto pipeline = plan_pipeline(
      c, [&](auto const& stages, auto const& program) { return rank_bytes(c, stages, program, platform); },
      execution_of(c));
  require_compressible(c, pipeline.stages);
  require_supported(pipeline.program, c.memory.divides() || c.memory.moves_weights(),
                    c.memory.offload_activations != config::OffloadTo::none);
  if (c.pipeline.schedule == "file") require_agreement(c, pipeline.program);
  require_short_messages(c, pipeline.stages);
  auto steps = plan_stream(c, pipeline, execution_of(c));
  auto plan =
      make_run_plan(c, std::move(pipeline.stages), std::move(pipeline.program), platform, std::move(steps.stream));
  plan.schedule_note = std::move(pipeline.reason);
  plan.flush_note = std::move(steps.note);
  return plan;
}

config::Config with_few_microbatches(config::Config c) {
  if (c.pipeline.schedule == "file") return c;
  c.batch.microbatches = std::min<std::int64_t>(c.batch.microbatches, 2 * std::int64_t{c.parallel.pp});
  c.batch.global = c.batch.microbatches * c.batch.micro * c.parallel.dp;
  return c;
}

PipelinePlan plan_few_microbatches(config::Config const& c) {
  auto const few = with_few_microbatches(c);
  RankBytes bytes;
  if (few.pipeline.max_memory > 0)
    bytes = [&](auto const& stages, auto const& program) { return rank_bytes(few, stages, program, {}); };
  return plan_pipeline(few, bytes, execution_of(few));
}

std::vector<double> rank_bytes(config::Config const& c, layout::StageMap const& stages,
                               schedule::Program const& training, Platform const& platform) {
  auto const plan = make_run_plan(c, stages, {training, execution_of(c)}, platform);
  std::vector<double> bytes;
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto m = plan.memory_of(r);
    std::vector<int> const ahead(static_cast<std::size_t>(stages.num_stages()), static_cast<int>(c.latest_delay()));
    if (may_stream(c)) add_stream_memory(c, plan.table, plan.stages, r, ahead, m);
    bytes.push_back(static_cast<double>(m.total()));
  }
  return bytes;
}

RunPlan make_run_plan(config::Config const& c, layout::StageMap stages, schedule::ValidProgram training,
                      Platform const& platform, std::optional<schedule::Stream> stream) {
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
               "",
               std::move(stream)};
  plan.activations = stage_activations(c, plan);
  for (int r = 0; r < c.parallel.pp; ++r) {
    plan.pools.push_back(make_state_pools(
        c, plan.table, plan.stages, r, plan.training,
        {&static_cast<schedule::Program const&>(plan.evaluation), &static_cast<schedule::Program const&>(plan.probe)}));
    plan.memory.push_back(predict_memory(c, plan, r, platform));
  }
  return plan;
}

double recompute_flops_per_step(config::Config const& c, RunPlan const& plan) {
  std::vector<double> per_token;
  for (int s = 0; s < plan.stages.num_stages(); ++s)
    per_token.push_back(recompute_flops_per_token(c, plan.activations[static_cast<std::size_t>(s)].recompute,
                                                  plan.stages.layers(s).begin, Keys::all));
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
  auto const e = element_bytes(c);
  double most = 0.0;
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto const& actions = plan.training->ranks[static_cast<std::size_t>(r)];
    auto const gradients = schedule::moves_gradients(plan.training, r);
    std::map<std::pair<int, bool>, double> bytes;  // of one move, for each stage, with and without gradients
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

}  // namespace p3d::plan
