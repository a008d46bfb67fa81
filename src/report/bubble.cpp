// SPDX-License-Identifier: Apache-2.0
// The cause of a large bubble, and the keys that would make it smaller.
//
// A bubble has two causes: ranks whose work differs, so that all wait for the busiest, and a schedule that fills and
// drains the pipeline. The first cause is found from the busy times of a simulation. The keys that would help are not
// guessed: the input is read again with the key, planned and simulated, and its time for a token is compared. Example:
//
//   pipeline rank 3 has 1.45 of the mean work: stage 3 with 2 of 8 layers and the output layer
//   time for a token beside this one, by simulation:
//     0.78 with pipeline.layers_per_stage = "cost"

#include "bubble.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/pipeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace p3d::report {

namespace {

constexpr double uneven = 1.05;       ///< a rank is busiest from this ratio of its work to the mean on
constexpr double worth_it = 0.97;     ///< a key is told if the time with it over the time without it is at most this
constexpr std::size_t most_told = 3;  ///< keys told at most
constexpr std::int64_t most_tried = 4096,
                       most_of_all_schedules = 1024;  ///< forwards of a program that is tried; a second simulates many

/// One key to try, or two that go together, and the text that tells it.
struct Remedy {
  std::vector<std::string> overrides;
  std::string text;
};

/// The number of forwards of a replica in a step.
std::int64_t forwards_of(schedule::Program const& program) {
  return std::int64_t{program.num_stages} * program.num_microbatches;
}

/// The keys to try for an input.
std::vector<Remedy> remedies(config::Config const& c, std::int64_t forwards) {
  std::vector<Remedy> out;
  auto const& p = c.pipeline;
  // Each key is offered only where the input does not have it yet. The number of microbatches is raised without a
  // change of the batch where the micro batch can be halved.
  if (p.layer_split != config::LayerSplit::cost)
    out.push_back({{"pipeline.layers_per_stage=cost"}, "pipeline.layers_per_stage = \"cost\""});
  if (!p.vocab_parallel) out.push_back({{"pipeline.vocab_parallel=true"}, "pipeline.vocab_parallel = true"});
  auto const twice = 2 * c.batch.microbatches;
  if (c.batch.micro % 2 == 0) {
    out.push_back(
        {{fmt::format("batch.micro={}", c.batch.micro / 2), fmt::format("batch.microbatches={}", twice)},
         fmt::format("batch.micro = {} and batch.microbatches = {}, the same batch", c.batch.micro / 2, twice)});
  } else {
    out.push_back({{fmt::format("batch.global={}", 2 * c.batch.global), fmt::format("batch.microbatches={}", twice)},
                   fmt::format("batch.microbatches = {}, twice the batch", twice)});
  }
  if (p.schedule != "auto" && p.schedule != "file" && forwards <= most_of_all_schedules)
    out.push_back({{"pipeline.schedule=auto"}, ""});
  return out;
}

/// The result of a trial: seconds for a token, and the name of the schedule.
struct Trial {
  double seconds = 0.0;
  std::string schedule;
};
/// Plans and simulates the input with other keys; empty where the input refuses them.
std::optional<Trial> try_out(config::Config const& c, std::vector<std::string> const& overrides) {
  // The key goes through the same parser and rules as an input file, so a key that is refused there is never advised.
  auto const read = config::parse_text(config::canonical_toml(c), "the input", "", overrides, c.num_ranks());
  if (!read.config) return {};
  try {
    auto const execution = plan::execution_of(*read.config);
    auto const plan = plan::plan_pipeline(*read.config, {}, execution);
    auto const time = plan::simulate(plan.program, plan::model_costs(*read.config, plan.stages), execution).step_time;
    return Trial{time / static_cast<double>(read.config->batch.global), plan.schedule};
  } catch (base::Error const&) {
    return {};
  }
}

/// The work of a rank in words: "stage 3 with 2 of 8 layers and the output layer".
std::string what_it_has(config::Config const& c, engine::RunPlan const& plan, int rank) {
  auto const& mine = plan.stages.stages_of(rank);
  int layers = 0;
  bool embedding = false, output = false;
  for (int s : mine) {
    layers += plan.stages.num_layers(s);
    embedding = embedding || plan.stages.has_embedding(s);
    output = output || plan.stages.has_head(s);
  }
  std::string text =
      mine.size() == 1 ? fmt::format("stage {} with", mine.front()) : fmt::format("its {} stages with", mine.size());
  text += fmt::format(" {} of {}", layers, base::counted(c.model.layers, "layer"));
  if (embedding) text += output ? ", the embedding" : " and the embedding";
  if (output) text += " and the output layer";
  return text;
}

}  // namespace

Busiest busiest_rank(plan::Simulation const& simulated) {
  auto const& ranks = simulated.ranks;
  auto const most =
      std::max_element(ranks.begin(), ranks.end(), [](auto const& a, auto const& b) { return a.busy < b.busy; });
  double const ratio = most->busy * static_cast<double>(ranks.size()) / simulated.busy();
  return ratio < uneven ? Busiest{} : Busiest{static_cast<int>(most - ranks.begin()), ratio};
}

std::string bubble_lines(config::Config const& c, engine::RunPlan const& plan, plan::Simulation const& simulated) {
  if (simulated.bubble() < large_bubble) return "";
  auto const busiest = busiest_rank(simulated);
  auto text = busiest.rank >= 0 ? fmt::format("  pipeline rank {} has {:.2f} of the mean work: {}\n", busiest.rank,
                                              busiest.ratio, what_it_has(c, plan, busiest.rank))
                                : fmt::format("  the ranks have even work: {} fill and drain {}\n",
                                              base::counted(c.batch.microbatches, "microbatch"),
                                              base::counted(c.parallel.pp, "pipeline rank"));
  // Trials cost a plan and a simulation each, so large programs get the cause alone.
  auto const forwards = forwards_of(plan.training);
  if (forwards > most_tried) return text;
  double const now = simulated.step_time / static_cast<double>(c.batch.global);
  struct Told {
    double ratio;
    std::string text;
  };
  std::vector<Told> told;
  for (auto const& remedy : remedies(c, forwards)) {
    auto const trial = try_out(c, remedy.overrides);
    if (!trial || trial->seconds > worth_it * now) continue;
    told.push_back({trial->seconds / now,
                    remedy.text.empty()
                        ? fmt::format("pipeline.schedule = \"{}\" (its memory: p3d schedule compare)", trial->schedule)
                        : remedy.text});
  }
  std::stable_sort(told.begin(), told.end(), [](auto const& a, auto const& b) { return a.ratio < b.ratio; });
  if (told.empty()) return text;
  if (told.size() > most_told) told.resize(most_told);
  text += "  time for a token beside this one, by simulation:\n";
  for (auto const& t : told) text += fmt::format("    {:.2f} with {}\n", t.ratio, t.text);
  return text;
}

}  // namespace p3d::report
