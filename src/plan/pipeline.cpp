// SPDX-License-Identifier: Apache-2.0
// Makes the program of a configuration. A generator writes compute actions; complete() then adds everything else in a
// fixed order: deferred weight gradients, stages cut for the sharding of their state, slots and messages, pairs,
// offloading, sharding. Where several orders of actions are possible, each is completed and simulated, and the quickest
// one is taken; "auto" does so with all schedules. An example: pp = 2, 4 microbatches and "1f1b" give rank 0 the
// compute actions 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3, and complete() puts sends, receives and the update between and
// behind them.

#include <p3d/plan/pipeline.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/config/config.hpp>
#include <p3d/schedule/passes.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace p3d::plan {
namespace {

using StageCosts = std::function<PipelineCosts(layout::StageMap const&)>;

constexpr std::int64_t most_file_bytes = std::int64_t{128} << 20;  // of schedule::most_forwards as text

constexpr std::int64_t most_compared = std::int64_t{1} << 17;  // a dozen schedules of them take some seconds

schedule::Shape shape_of(config::Config const& c, int stages_per_rank) {
  return {c.parallel.pp, static_cast<int>(c.batch.microbatches), stages_per_rank, c.pipeline.microbatch_group_size};
}

/// True when stages are cut into parts of memory.shard_layers layers: their whole weights, or gradients, are in memory
/// only for a while, and a part needs less of it than a stage.
bool cuts_stages(config::Memory const& m) { return m.shard == config::Shard::gradients || m.moves_weights(); }

schedule::Every every(config::MessageEvery e) {
  return e == config::MessageEvery::step ? schedule::Every::step : schedule::Every::microbatch;
}

bool offloads(config::Config const& c) { return c.memory.offload_activations != config::OffloadTo::none; }

/// Compute actions that a slot is taken before its receive must be posted. Where activations are offloaded, the slot
/// that is written out takes one of those that pipeline.lookahead allows.
int slot_lookahead(config::Config const& c) { return std::max(0, c.pipeline.lookahead - (offloads(c) ? 1 : 0)); }

/// The passes that an input asks for; pairs, a divided vocabulary and the parts of stages come on top.
schedule::PassOptions pass_options(config::Config const& c, schedule::Execution execution) {
  schedule::PassOptions out{
      .slot_lookahead = slot_lookahead(c), .workers = c.workers_of_replica(), .execution = execution};
  if (c.parallel.pp > 1) out.weight_deferral_limit = c.pipeline.weight_deferral_limit;
  if (offloads(c)) out.resident = std::max(2, 1 + c.pipeline.lookahead);
  // State that replicas divide, and weights that wait elsewhere, travel by actions. The next weights come while the
  // present ones are used.
  auto const& m = c.memory;
  if (m.divides() || m.offloads_parameters())
    out.weights = {.gather = every(m.gather), .reduce = every(m.reduce), .ahead = 1, .offloads = !m.divides()};
  return out;
}

/// A program of compute actions, completed, and the layers of its stages.
struct Division {
  layout::StageMap stages;
  schedule::Program program;
};
Division run_passes(config::Config const& c, schedule::Program compute, schedule::PassOptions options) {
  auto stages = layout::make_stage_map(c, compute.stage_rank);
  if (cuts_stages(c.memory)) {
    for (int s = 0; s < stages.num_stages(); ++s) {
      auto const layers = static_cast<std::int64_t>(stages.num_layers(s)), each = c.memory.shard_layers;
      options.parts.push_back(static_cast<int>(std::max<std::int64_t>(1, (layers + each - 1) / each)));
    }
    stages = layout::refine(stages, options.parts);
    options.tied = c.model.last_reads_embedding() && stages.shares_tied();
  }
  return {std::move(stages), schedule::apply_passes(std::move(compute), options)};
}

double simulated_time(Division const& d, schedule::Execution const& execution, StageCosts const& costs) {
  return simulate(d.program, costs(d.stages), execution).step_time;
}

schedule::VocabularyTimes vocabulary_times(PipelineCosts const& costs) {
  schedule::VocabularyTimes t;
  for (auto const& s : costs.stages) {
    double const input = s.input + s.recompute;
    t.stages.push_back({s.forward, input, s.backward < 0 ? s.weight : s.backward + s.recompute - input});
  }
  auto const& v = costs.vocabulary;
  t.embed = v.embed_forward;
  t.head_forward = v.head_forward;
  t.head_backward = v.head_backward;
  t.exchange = std::max(v.sum, v.broadcast);
  return t;
}

/// The ways in which a program can be completed, the plainest first. Where forwards and backwards may interleave there
/// are three: with the pairs that the schedule has, without more pairs than there are, and with a forward more ahead.
/// A divided vocabulary may go forwards first, or backwards.
std::vector<schedule::PassOptions> ways_to_complete(config::Config const& c, schedule::Program const& compute,
                                                    schedule::Execution execution, StageCosts const& costs) {
  std::vector<schedule::PassOptions> orders{pass_options(c, execution)}, out;
  if (c.divides_vocabulary()) {
    using schedule::VocabularyOrder;
    auto const times = vocabulary_times(costs(layout::make_stage_map(c, compute.stage_rank)));
    orders.push_back(orders.front());
    orders[0].vocabulary = {times, VocabularyOrder::forwards_first, c.model.tied_embeddings};
    orders[1].vocabulary = {times, VocabularyOrder::backwards_first, c.model.tied_embeddings};
  }
  for (auto const& order : orders) {
    out.push_back(order);
    if (!execution.pairs) continue;
    for (bool more_ahead : {false, true}) {
      out.push_back(order);
      out.back().close_pairs = true;
      out.back().exchange_pairs = more_ahead;
    }
  }
  return out;
}

/// The program of a run: of the ways to complete it, the quickest by simulation.
Division best_division(config::Config const& c, schedule::Program const& compute, schedule::Execution execution,
                       StageCosts const& costs) {
  auto const ways = ways_to_complete(c, compute, execution, costs);
  if (ways.size() == 1) return run_passes(c, compute, ways.front());
  std::optional<Division> best;
  double least = 0.0;
  for (auto const& way : ways) {
    auto other = run_passes(c, compute, way);
    // Closed pairs may wait for each other in a circle, and so may messages that start together and the exchanges of a
    // divided vocabulary.
    bool const proves = way.close_pairs || execution.p2p != schedule::P2p::separate;
    if (proves && !schedule::validate(other.program, execution).empty()) continue;
    double const time = simulated_time(other, execution, costs);
    if (best && time >= least) continue;
    least = time;
    best = std::move(other);
  }
  if (!best)
    base::refuse({.expected = "messages that go with the exchanges of a divided vocabulary in this schedule",
                  .found = fmt::format("pipeline.p2p = \"{}\", where ranks would wait for each other in a circle",
                                       to_string(c.pipeline.p2p)),
                  .where = "pipeline.p2p; pipeline.vocab_parallel",
                  .fix = "set pipeline.p2p to \"separate\", or pipeline.vocab_parallel to false"});
  return *std::move(best);
}

using base::refuse;

schedule::Program read_program(config::Config const& c) {
  auto const& path = c.pipeline.file;
  auto const text = base::read_text_file(path, "a schedule file", "pipeline.file", most_file_bytes);
  schedule::Program program;
  try {
    program = schedule::parse_schedule_file(text, slot_lookahead(c));
  } catch (base::Error const& e) {
    refuse(e.text().expected, e.text().found, fmt::format("pipeline.file = {}: {}", path, e.text().where),
           e.text().fix);
  }
  if (program.num_ranks != c.parallel.pp)
    refuse(fmt::format("a schedule of parallel.pp = {} ranks", c.parallel.pp),
           fmt::format("{} in {}", program.num_ranks, path), "pipeline.file",
           fmt::format("set parallel.pp to {}, or take another file", program.num_ranks));
  if (program.num_microbatches != c.batch.microbatches)
    refuse(fmt::format("a schedule of {}", base::counted(c.batch.microbatches, "microbatch")),
           fmt::format("{} in {}", program.num_microbatches, path), "pipeline.file",
           fmt::format("set batch.microbatches to {}, or take another file", program.num_microbatches));
  if (program.divides_vocabulary && !c.divides_vocabulary())
    refuse("a schedule without E, S, T and G: the vocabulary lies whole on the first and the last stage",
           fmt::format("a vocabulary that is divided over the pipeline in {}", path), "pipeline.file",
           "set pipeline.vocab_parallel to true, or take a file without them");
  if (c.divides_vocabulary() && !program.divides_vocabulary)
    refuse("a schedule with E, S, T and G: pipeline.vocab_parallel divides the vocabulary over the pipeline",
           fmt::format("none in {}", path), "pipeline.file",
           "set pipeline.vocab_parallel to false, or write the file with it: `p3d schedule show input.toml "
           "pipeline.schedule=1f1b --csv FILE`");
  return program;
}

/// The numbers of stages per rank that are worth a try with a generator.
std::vector<int> chunk_numbers(config::Config const& c, schedule::Generator const& g) {
  if (!g.any_stages_per_rank) return {g.stages_per_rank};
  if (c.pipeline.virtual_stages > 0) return {c.pipeline.virtual_stages};
  std::vector<int> out;
  for (int v : {2, 4})
    if (v == 2 || c.model.layers >= std::int64_t{v} * c.parallel.pp) out.push_back(v);
  return out;
}

/// Bytes of the rank that needs most; 0 when nobody knows.
double worst_rank(RankBytes const& rank_bytes, layout::StageMap const& stages, schedule::Program const& program) {
  if (!rank_bytes) return 0;
  auto const bytes = rank_bytes(stages, program);
  return *std::max_element(bytes.begin(), bytes.end());
}

/// The candidate in words: "interleaved_1f1b with 4 stages per rank".
std::string label(Candidate const& c) {
  return c.stages_per_rank > 2 ? fmt::format("{} with {} stages per rank", c.schedule, c.stages_per_rank) : c.schedule;
}

/// Chooses the schedule of "auto".
PipelinePlan choose(config::Config const& c, RankBytes const& rank_bytes, schedule::Execution execution) {
  auto const forwards = std::int64_t{c.parallel.pp} * c.batch.microbatches;
  if (forwards > most_compared)
    refuse(fmt::format("at most {} forwards (parallel.pp x batch.microbatches) for \"auto\", which simulates every "
                       "schedule",
                       most_compared),
           fmt::format("{} x {}", c.parallel.pp, c.batch.microbatches), "pipeline.schedule",
           "choose a schedule by name, or raise batch.micro: fewer microbatches of the same batch");
  P3D_REQUIRE(c.pipeline.max_memory == 0 || rank_bytes, "a limit of memory needs somebody who knows what a rank takes");
  auto all = compare_schedules(
      c, [&](auto const& stages) { return model_costs(c, stages); }, rank_bytes, execution);
  double const limit = c.pipeline.max_memory * 1024 * 1024 * 1024;
  auto const fits = [&](Candidate const& x) { return x.refused.empty() && (limit == 0 || x.rank_bytes <= limit); };
  auto const best = std::find_if(all.begin(), all.end(), fits);
  if (best == all.end()) {
    auto const least = std::min_element(all.begin(), all.end(), [](auto const& a, auto const& b) {
      return std::pair(!a.refused.empty(), a.rank_bytes) < std::pair(!b.refused.empty(), b.rank_bytes);
    });
    if (!least->refused.empty())
      refuse("a schedule for this input", least->refused, "pipeline.schedule",
             "choose one by name to see why it cannot be had");
    refuse(fmt::format("a schedule within {} per rank", base::human_bytes(limit)),
           fmt::format("the smallest, {}, needs {}", label(*least), base::human_bytes(least->rank_bytes)),
           "pipeline.max_memory",
           fmt::format("raise pipeline.max_memory, parallel.pp or parallel.tp, or lower batch.micro{}",
                       c.pipeline.lookahead > 0 ? " or pipeline.lookahead" : ""));
  }
  auto const line = [](Candidate const& x) {
    return fmt::format("{} ({:.4g} s, bubble {:.1f} %{})", label(x), x.result.step_time, 100 * x.result.bubble(),
                       x.rank_bytes > 0 ? ", " + base::human_bytes(x.rank_bytes) : std::string());
  };
  std::string reason = fmt::format("auto chose {}: the quickest by simulation", line(*best));
  if (limit > 0) reason += fmt::format(" within {} per rank", base::human_bytes(limit));
  std::vector<std::string> quicker;
  for (auto it = all.begin(); it != best; ++it) quicker.push_back(line(*it));
  if (!quicker.empty()) reason += "; quicker but too large: " + base::join(quicker);
  for (auto it = best + 1; it != all.end(); ++it)
    if (fits(*it)) {
      reason += "; next: " + line(*it);
      break;
    }
  auto chosen = best_division(c, schedule::generate(best->schedule, shape_of(c, best->stages_per_rank)), execution,
                              [&](auto const& stages) { return model_costs(c, stages); });
  return {best->schedule, {std::move(chosen.program), execution}, std::move(chosen.stages), std::move(reason)};
}

}  // namespace

std::vector<Candidate> compare_schedules(config::Config const& c,
                                         std::function<PipelineCosts(layout::StageMap const&)> const& costs,
                                         RankBytes const& rank_bytes, schedule::Execution execution, bool record) {
  std::vector<Candidate> all;
  for (schedule::Generator const* g : schedule::generators())
    for (int chunks : chunk_numbers(c, *g)) {
      Candidate& candidate = all.emplace_back();
      candidate.schedule = g->name;
      candidate.stages_per_rank = chunks;
      try {
        auto shape = shape_of(c, chunks);
        if (!g->any_group_size) shape.microbatch_group_size = 0;
        auto const [stages, program] = best_division(c, schedule::generate(g->name, shape), execution, costs);
        candidate.result = simulate(program, costs(stages), execution, record);
        candidate.rank_bytes = worst_rank(rank_bytes, stages, program);
      } catch (base::Error const& e) {
        candidate.refused = fmt::format("needs {}, found {}", e.text().expected, e.text().found);
      }
    }
  std::stable_sort(all.begin(), all.end(), [](Candidate const& a, Candidate const& b) {
    auto const key = [](Candidate const& x) {
      return std::tuple(!x.refused.empty(), x.result.step_time, x.rank_bytes, x.result.peak_live());
    };
    return key(a) < key(b);
  });
  return all;
}

PipelinePlan plan_pipeline(config::Config const& c, RankBytes const& rank_bytes, schedule::Execution execution) {
  if (c.pipeline.schedule == "auto") return choose(c, rank_bytes, execution);
  if (c.pipeline.schedule == "file") {
    auto program = read_program(c);
    auto const has = [&](auto const& op) {
      return std::any_of(program.ranks.begin(), program.ranks.end(), [&](auto const& actions) {
        return std::any_of(actions.begin(), actions.end(), [&](auto const& a) { return op(a.op); });
      });
    };
    if (execution.pairs) {
      auto closed = program;
      schedule::close_pairs(closed);
      if (schedule::validate(closed, execution).empty()) program = std::move(closed);
    }
    auto options = pass_options(c, execution);
    options.is_complete = true;
    if (has(schedule::moves_activations)) options.resident = 0;
    if (has(schedule::moves_weights)) options.weights.reset();
    program = schedule::apply_passes(std::move(program), options);
    auto stages = layout::make_stage_map(c, program.stage_rank);
    return {c.pipeline.schedule, {std::move(program), execution}, std::move(stages), ""};
  }
  auto compute = schedule::generate(c.pipeline.schedule, shape_of(c, c.pipeline.virtual_stages));
  int const deferred = pass_options(c, execution).weight_deferral_limit;
  if (deferred > 0) {
    auto tried = compute;
    if (!schedule::defer_weight_gradients(tried, deferred))
      refuse("a schedule with whole backwards on its last stage: the others put weight gradients off already",
             fmt::format("schedule \"{}\"", c.pipeline.schedule), "pipeline.weight_deferral_limit",
             "set pipeline.weight_deferral_limit to 0, or pipeline.schedule to \"1f1b\"");
  }
  auto division = best_division(c, compute, execution, [&](auto const& stages) { return model_costs(c, stages); });
  return {c.pipeline.schedule, {std::move(division.program), execution}, std::move(division.stages), ""};
}

}  // namespace p3d::plan
