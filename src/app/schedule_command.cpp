// SPDX-License-Identifier: Apache-2.0
// Shows, checks, simulates and compares pipeline schedules without running them. The schedule is planned as a run plans
// it (plan::plan_pipeline), for the number of ranks that is given; costs come from the model, from a table of measured
// times, or are 1 for each part. Example: "p3d schedule compare input.toml parallel.pp=4 --unit" prints a line for each
// schedule with its step time, bubble and memory.
#include "schedule_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/memory_choice.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/page/schedule_picture.hpp>
#include <p3d/plan/layout_choice.hpp>
#include <p3d/plan/pipeline.hpp>
#include <p3d/report/describe.hpp>
#include <p3d/schedule/passes.hpp>
#include <p3d/schedule/timeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

namespace p3d::app {
namespace {

/// The options of all subcommands.
struct Options {
  std::vector<std::string> words;  ///< input file and overrides of its keys
  int ranks = 0;
  bool unit = false;
  bool passes = false;   ///< `show --passes`: print the list of passes, and nothing else
  bool actions = false;  ///< `show --actions`: print the list of actions, and nothing else
  plan::MachineRates rates;
  std::string costs, text, csv, svg, trace;
};

constexpr char const* schedule_footer =
    "Examples:\n"
    "  p3d schedule show inputs/quickstart.toml pipeline.schedule=zb_v parallel.pp=2 --svg zb_v.svg\n"
    "  p3d schedule show --passes\n"
    "  p3d schedule show --actions\n"
    "  p3d schedule check input.toml pipeline.schedule=file pipeline.file=mine.csv\n"
    "  p3d schedule simulate inputs/llama3-8b.toml --ranks 64 --flops 1e14 --bandwidth 2.5e10\n"
    "  p3d schedule compare inputs/gpt2-tiny.toml parallel.pp=4 --unit --svg all.svg\n"
    "\n"
    "Costs: a formula of the model over --flops, --bandwidth and --latency; or --costs, a table of measured seconds\n"
    "(stage,forward,input,weight; run.trace writes it as costs.csv); or --unit, 1 for every part of a rank's layers "
    "and communication for nothing.";

/// Writes the file that an option names and tells so; an empty path writes nothing.
void write(char const* option, std::string const& path, std::string const& content) {
  if (path.empty()) return;
  write_file(path, content, option);
  std::cout << "written: " << path << '\n';
}

/// The subcommands, for one configuration.
class Command {
public:
  Command(config::Config config, Options options) : config_(std::move(config)), options_(std::move(options)) {}

  /// Prints the table of actions, for 32 ranks and 40 steps at most, and writes the files that the options name.
  int show() {
    base::Stopwatch watch;
    auto const plan = plan::plan_pipeline(config_, rank_bytes(), execution());
    if (!plan.reason.empty()) std::cout << plan.reason << '\n';
    std::cout << header(plan) << schedule::to_table(plan.program, -1, -1, 32, 40);
    if (!options_.text.empty()) write("--text", options_.text, schedule::to_text(plan.program));
    if (!options_.csv.empty()) write("--csv", options_.csv, schedule::to_csv(plan.program));
    if (!options_.svg.empty() || !options_.trace.empty()) pictures(plan);
    return 0;
  }

  /// Proves that the program runs to its end, with sends that wait for their receiver and with sends that do not. MPI
  /// may do either, depending on the size of a message. The forwards alone, as validation runs them, are proved too.
  int check() {
    base::Stopwatch watch;
    auto const plan = plan::plan_pipeline(config_, rank_bytes(), execution());
    std::size_t actions = 0;
    for (auto const& list : plan.program->ranks) actions += list.size();
    double const made = watch.seconds();
    watch = {};
    schedule::require_valid(plan.program, execution());
    double const rendezvous = watch.seconds();
    watch = {};
    auto how = execution();
    how.rendezvous = false;
    schedule::require_valid(plan.program, how);
    double const eager = watch.seconds();
    watch = {};
    schedule::forward_only(plan.program, plan.program->num_microbatches);
    std::cout << header(plan)
              << fmt::format(
                     "valid: {} actions run to their end with rendezvous sends ({:.3g} s), and with "
                     "eager sends ({:.3g} s); so do the forwards alone, for evaluation ({:.3g} s); made in {:.3g} s\n",
                     actions, rendezvous, eager, watch.seconds(), made);
    return 0;
  }

  /// Predicts the times of every rank. Of more than 40 ranks the first 20 and the last 4 are printed.
  int simulate() {
    auto const plan = plan::plan_pipeline(config_, rank_bytes(), execution());
    if (!plan.reason.empty()) std::cout << plan.reason << '\n';
    auto const result = plan::simulate(plan.program, costs(plan.stages), execution(), false);
    std::cout << header(plan)
              << fmt::format("{:<6} {:>12} {:>12} {:>9} {:>6} {:>6} {:>12}\n", "rank", "busy", "waits", "bubble",
                             "keeps", "slots", "sent");
    auto const count = result.ranks.size();
    for (std::size_t r = 0; r < count; ++r) {
      if (count > 40 && r == 20) {
        std::cout << "...\n";
        r = count - 4;
      }
      auto const& k = result.ranks[r];
      std::cout << fmt::format("{:<6} {:>12} {:>12} {:>7.1f} % {:>6} {:>6} {:>12}\n", r, time(k.busy),
                               time(result.makespan - k.busy), 100 * waiting(result, k), k.peak_live, k.slots,
                               base::human_bytes(k.bytes_sent));
    }
    std::cout << summary(result) << '\n';
    if (config_.parallel.cp > 1 && !options_.unit && options_.costs.empty())
      std::cout << "context parallelism, a part of busy:\n" << report::context_wait_line(config_, options_.rates);
    if (auto const bytes = worst_rank(plan.stages, plan.program); bytes > 0)
      std::cout << "the largest rank needs " << base::human_bytes(bytes)
                << " (weights, gradients, moments, activations, scratch)\n";
    if (!options_.text.empty()) write("--text", options_.text, schedule::to_text(plan.program));
    if (!options_.csv.empty()) write("--csv", options_.csv, schedule::to_csv(plan.program));
    if (!options_.svg.empty() || !options_.trace.empty()) pictures(plan);
    return 0;
  }

  /// Prints a line for every schedule, the quickest one first. A schedule that cannot run this input gets the reason
  /// instead of numbers.
  int compare() {
    auto const all = plan::compare_schedules(
        config_, [&](auto const& stages) { return costs(stages); }, rank_bytes(), execution(), !options_.svg.empty());
    std::cout << fmt::format("{}, {} of {}; by time\n", base::counted(config_.parallel.pp, "pipeline rank"),
                             base::counted(config_.batch.microbatches, "microbatch"),
                             base::counted(config_.batch.micro, "sequence"))
              << fmt::format("{:<18} {:>6} {:>12} {:>8} {:>7} {:>12} {:>12}\n", "schedule", "stages", "step", "bubble",
                             "keeps", "rank needs", "sent");
    std::vector<schedule::Timeline> pictures;
    for (auto const& c : all) {
      auto const stages = std::int64_t{c.stages_per_rank} * config_.parallel.pp;
      if (!c.refused.empty()) {
        std::cout << fmt::format("{:<18} {:>6} {}\n", c.schedule, stages, c.refused);
        continue;
      }
      std::cout << fmt::format("{:<18} {:>6} {:>12} {:>6.1f} % {:>7.1f} {:>12} {:>12}\n", c.schedule, stages,
                               time(c.result.step_time), 100 * c.result.bubble(), keeps(c.result, c.stages_per_rank),
                               c.rank_bytes > 0 ? base::human_bytes(c.rank_bytes) : std::string("-"),
                               base::human_bytes(c.result.bytes_sent()));
      pictures.push_back(labelled(
          c.result,
          c.stages_per_rank > 1 ? fmt::format("{}, {} stages per rank", c.schedule, c.stages_per_rank) : c.schedule,
          c.stages_per_rank));
    }
    std::cout << "bubble: share of the ranks' time that is lost; keeps: the most microbatches whose activations a rank "
                 "holds, of all its layers\n";
    if (!options_.svg.empty())
      write("--svg", options_.svg,
            page::to_svg(pictures,
                         fmt::format("{}, {}", base::counted(config_.parallel.pp, "pipeline rank"),
                                     base::counted(config_.batch.microbatches, "microbatch")),
                         unit()));
    return 0;
  }

private:
  /// How the engine of this build executes programs, which the simulation imitates.
  schedule::Execution execution() const { return plan::execution_of(config_); }
  /// Bytes of every rank for stages and a program, as a run would need them.
  plan::RankBytes rank_bytes() const {
    return [this](layout::StageMap const& stages, schedule::Program const& program) {
      return plan::rank_bytes(config_, stages, program, engine::platform());
    };
  }
  /// Bytes of the rank that needs most.
  double worst_rank(layout::StageMap const& stages, schedule::Program const& program) const {
    auto const bytes = plan::rank_bytes(config_, stages, program, engine::platform());
    return *std::max_element(bytes.begin(), bytes.end());
  }

  /// Costs of the stages, in seconds, or in units with --unit.
  plan::PipelineCosts costs(layout::StageMap const& stages) const {
    if (options_.unit) {
      // A rank's layers take 1 in all, however many stages they are cut into.
      double const part = static_cast<double>(config_.parallel.pp) / stages.num_stages();
      return plan::PipelineCosts::uniform(stages.num_stages(), {part, part, part});
    }
    auto costs = plan::model_costs(config_, stages, options_.rates);
    if (options_.costs.empty()) return costs;
    auto const text = base::read_text_file(options_.costs, "a table of costs", "--costs", std::int64_t{64} << 20);
    auto measured = plan::parse_costs(text, stages.num_stages());
    // A table of costs may leave out the size of a message: it follows from the model then.
    if (measured.message_bytes == 0) measured.message_bytes = costs.message_bytes;
    return measured;
  }

  /// The unit of times in tables and pictures.
  std::string unit() const { return options_.unit ? "f (forward of a rank)" : "s"; }
  /// A time in words; with --unit a plain number.
  std::string time(double seconds) const {
    if (options_.unit) return fmt::format("{:.4g}", seconds);
    return seconds >= 1 ? fmt::format("{:.4g} s", seconds) : fmt::format("{:.4g} ms", 1e3 * seconds);
  }
  /// The share of a rank's time in which it computes nothing; 0 where nothing takes any time.
  static double waiting(plan::Simulation const& all, plan::RankResult const& rank) {
    return all.makespan > 0 ? 1 - rank.busy / all.makespan : 0.0;
  }
  /// The largest number of microbatches whose activations a rank holds, counted in all of its layers.
  static double keeps(plan::Simulation const& result, int stages_per_rank) {
    return static_cast<double>(result.peak_live()) / stages_per_rank;
  }

  /// The line above a table: name and sizes of the schedule.
  std::string header(plan::PipelinePlan const& plan) const {
    return fmt::format("{}: {} on {}, {}\n", plan.schedule, base::counted(plan.program->num_stages, "stage"),
                       base::counted(plan.program->num_ranks, "pipeline rank"),
                       base::counted(plan.program->num_microbatches, "microbatch"));
  }
  /// The line below a table: what the whole pipeline takes.
  std::string summary(plan::Simulation const& r) const {
    return fmt::format("step {}, bubble {:.1f} % ({:.1f} % from each rank's first action to its last), {} sent",
                       time(r.step_time), 100 * r.bubble(), 100 * r.span_bubble(), base::human_bytes(r.bytes_sent()));
  }
  /// The timeline of a simulation with title, notes for each rank and a caption.
  schedule::Timeline labelled(plan::Simulation const& r, std::string const& title, int stages_per_rank) const {
    auto timeline = r.timeline;
    timeline.title = title;
    for (auto const& k : r.ranks)
      timeline.rank_notes.push_back(fmt::format("waits {:.0f} %, keeps {:.3g}", 100 * waiting(r, k),
                                                static_cast<double>(k.peak_live) / stages_per_rank));
    timeline.caption.push_back(summary(r) + fmt::format("; keeps at most {:.3g} microbatches of activations on a rank",
                                                        keeps(r, stages_per_rank)));
    return timeline;
  }
  /// Simulates the schedule again for a picture, and writes it.
  void pictures(plan::PipelinePlan const& plan) {
    auto const result = plan::simulate(plan.program, costs(plan.stages), execution(), true);
    auto timeline = labelled(result, header(plan), std::max(1, plan.program->num_stages / plan.program->num_ranks));
    timeline.title.pop_back();
    timeline.title += ": simulated";
    timeline.caption.push_back("largest rank: " + base::human_bytes(worst_rank(plan.stages, plan.program)) +
                               " with weights, gradients and moments");
    if (!options_.svg.empty()) write("--svg", options_.svg, page::to_svg({timeline}, "", unit()));
    write("--trace", options_.trace, schedule::to_chrome_trace(timeline));
  }

  config::Config config_;
  Options options_;
};

}  // namespace

int schedule_command(int argc, char** argv) {
  CLI::App app{"The pipeline's schedule, without running it."};
  app.name("p3d schedule");
  app.footer(schedule_footer);
  app.require_subcommand(1);
  Options o;
  int (Command::*action)() = nullptr;
  enum class Gives { proof, picture, files };
  auto const add = [&](char const* name, char const* help, int (Command::*run)(), Gives gives) {
    auto* sub = app.add_subcommand(name, help);
    sub->add_option("input", o.words, "input.toml, then overrides of its keys: section.key=value")
        ->type_name("FILE [KEY=VALUE ...]");
    sub->add_option("--ranks", o.ranks, "number of ranks to assume")->check(count_from(1, most_ranks));
    sub->callback([&action, run] { action = run; });
    if (gives == Gives::proof) return sub;
    auto* const unit =
        sub->add_flag("--unit", o.unit, "forward, input and weight part of a rank take 1, communication nothing");
    sub->add_option("--costs", o.costs, "CSV of measured seconds: stage,forward,input,weight")->excludes(unit);
    sub->add_option("--flops", o.rates.flops, "operations per second of a rank")
        ->check(number_from(1, 1e24))
        ->capture_default_str();
    sub->add_option("--bandwidth", o.rates.bandwidth, "bytes per second between two ranks")
        ->check(number_from(1, 1e24))
        ->capture_default_str();
    sub->add_option("--latency", o.rates.latency, "seconds of a message")
        ->check(number_from(0, 1e6))
        ->capture_default_str();
    sub->add_option("--svg", o.svg, "draw the timeline into this file");
    if (gives == Gives::files) {
      sub->add_option("--text", o.text, "write the program as text (pipeline.file reads it)");
      sub->add_option("--csv", o.csv, "write the program as CSV");
      sub->add_option("--trace", o.trace, "write the timeline for Perfetto or chrome://tracing (JSON)");
    }
    return sub;
  };
  auto* const show = add("show", "print the table of ranks and steps", &Command::show, Gives::files);
  auto* const passes = show->add_flag("--passes", o.passes,
                                      "print the passes that make a program of a schedule, in their order; no input");
  show->add_flag("--actions", o.actions,
                 "print the actions of which programs consist, for files of one's own; no input")
      ->excludes(passes);
  add("check", "prove that it runs to its end", &Command::check, Gives::proof);
  add("simulate", "predict times, waiting and communication of every rank", &Command::simulate, Gives::files);
  add("compare", "all schedules side by side", &Command::compare, Gives::picture);

  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  if (o.passes || o.actions) {
    std::cout << (o.passes ? schedule::passes_text() : schedule::actions_text());
    return 0;
  }
  auto const [input, overrides] = input_words(o.words);
  for (auto const& [option, path] : std::vector<std::pair<char const*, std::string>>{
           {"--text", o.text}, {"--csv", o.csv}, {"--svg", o.svg}, {"--trace", o.trace}})
    require_no_input(path, option, {input, o.costs});
  auto const result = plan::parse_planned_file(input, overrides, o.ranks).result;
  if (!result.config) {
    std::cerr << config::format(result.errors) << std::flush;
    return static_cast<int>(base::ExitCode::bad_input);
  }
  // The program of pipeline.file may be shown and written, but not over itself.
  require_no_input(o.text, "--text", {result.config->pipeline.file});
  require_no_input(o.csv, "--csv", {result.config->pipeline.file});
  Command command(engine::choose_memory(*result.config).config, std::move(o));
  return (command.*action)();
}

}  // namespace p3d::app
