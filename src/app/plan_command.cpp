// SPDX-License-Identifier: Apache-2.0
// Lists the layouts of a model on a machine that cluster.toml describes, by the predicted time of a step. Example: "p3d
// plan inputs/llama3-8b.toml --cluster inputs/clusters/dgx-h100.toml --ranks 64" prints the twenty best that fit, and
// of the first one what its step is spent on. "p3d plan grade" compares such predictions with measured runs.
#include "plan_command.hpp"

#include "command_line.hpp"
#include "plan_grade.hpp"
#include "plan_output.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/cluster.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/memory_choice.hpp>
#include <p3d/page/plan_picture.hpp>
#include <p3d/plan/search.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

namespace p3d::app {
namespace {

/// A search for more takes minutes and gigabytes.
constexpr std::uint64_t most_planned_ranks = 1U << 22;

constexpr char const* plan_footer =
    "Examples:\n"
    "  p3d plan inputs/llama3-8b.toml --cluster inputs/clusters/dgx-h100.toml --ranks 64\n"
    "  p3d plan inputs/llama3-8b.toml --cluster inputs/clusters/frontier.toml --ranks 64 --fix parallel.tp=8 --out "
    "run.toml\n"
    "  p3d plan inputs/llama3-8b.toml parallel.tp=2 --cluster inputs/clusters/dgx-h100.toml --ranks 64 --as-is\n"
    "  p3d plan grade benchmarks/plan/rows.csv --clusters inputs/clusters --csv residuals.csv\n"
    "  mpiexec -n 4 p3d plan calibrate --out here.toml\n"
    "\n"
    "The model, the batch and the types of the input stay; sizes of axes, batch.micro, the schedule, recomputation and "
    "sharding are free,\nbut for --fix. With --as-is the input's own layout is predicted. Predictions need the data of "
    "the machine alone: nothing is measured.\ndocs/plan.md says how they are made and how far they were off on "
    "published "
    "runs.";

constexpr char const* grade_footer =
    "The header of ROWS.csv names keys of the input (parallel.tp, batch.micro, ...), id, group, cluster, kernels, and\n"
    "measured_s (seconds of a step) or measured_bytes (of the rank that has most). NAME in the column cluster stands "
    "for "
    "the file\nNAME.toml in --clusters. kernels: unfused, fused, flash or fp8, the generation of the software that was "
    "measured.";

int grade_command(int argc, char** argv) {
  CLI::App app{"How far predictions are off: against measured runs."};
  app.name("p3d plan grade");
  app.footer(grade_footer);
  std::string rows, clusters = "inputs/clusters", csv;
  bool verbose = false;
  app.add_option("rows", rows, "table of measured runs")->required()->type_name("ROWS.csv");
  app.add_option("--clusters", clusters, "folder of cluster files")->capture_default_str();
  app.add_option("--csv", csv, "write the rows with their predictions into this file");
  app.add_flag("--verbose", verbose, "a line for each problem whose layouts are compared");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  require_no_input(csv, "--csv", {rows});
  return grade(rows, clusters, csv, verbose);
}

/// The layouts that the search left out, and why.
std::string left_out(plan::SearchResult const& result) {
  std::string text;
  for (auto const& [reason, count] : result.rejected)
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", count, reason);
  return fmt::format("{} layouts predicted{}{}{}\n", result.predicted,
                     text.empty() ? "" : "; quicker ones that do not fit: ", text,
                     result.complete ? "" : "; so many that others that fit may be quicker than those listed");
}

/// Words of `p3d plan` besides those of the search itself.
struct Wanted {
  std::vector<int> ranks;
  std::vector<std::string> what_if;
  std::string out, csv, svg;

  /// Refuses to write what is read: before a search that may take long.
  void require_no_input_among_files(std::vector<std::string> const& inputs) const {
    require_no_input(out, "--out", inputs);
    require_no_input(csv, "--csv", inputs);
    require_no_input(svg, "--svg", inputs);
  }
};

/// The best layout of the machine as it is, and with each of the changes.
void print_what_if(config::Config const& config, config::Cluster const& cluster, plan::KernelGeneration const& kernels,
                   plan::SearchOptions options, Wanted const& wanted, double now) {
  options.top = 1;
  for (auto const& change : wanted.what_if) {
    auto const best = plan::require_layouts(config, changed(cluster, change), kernels, options).layouts.front();
    double const then = best.time.seconds();
    double const percent = 100 * (then / now - 1);
    auto const change_in_words = std::abs(percent) < 0.05
                                     ? std::string("no change")
                                     : fmt::format("{:.1f} % {}", std::abs(percent), percent < 0 ? "less" : "more");
    std::cout << fmt::format("With {}: {:.4g} s, {}, {}\n", change, then, change_in_words,
                             plan::layout_of(best.config));
  }
}

int run(config::Config const& config, config::Cluster const& cluster, plan::KernelGeneration const& kernels,
        plan::SearchOptions options, Wanted const& wanted) {
  for (auto const& change : wanted.what_if) changed(cluster, change);  // a wrong word is told before the search
  std::vector<plan::PlannedLayout> listed;
  if (wanted.ranks.size() > 1) {
    options.top = 1;
    for (int ranks : wanted.ranks) {
      options.ranks = ranks;
      listed.push_back(plan::require_layouts(config, cluster, kernels, options).layouts.front());
    }
    std::cout << scaling_table(listed, cluster) << std::flush;
  } else {
    auto result = plan::require_layouts(config, cluster, kernels, options);
    listed = std::move(result.layouts);
    auto const& best = listed.front();
    std::cout << layout_table(listed, cluster) << left_out(result) << '\n'
              << plan::describe(best.config, cluster, best.time, best.bytes)
              << plan::sensitivity(best.config, cluster, kernels);
    print_what_if(config, cluster, kernels, options, wanted, best.time.seconds());
    auto const close = std::count_if(listed.begin(), listed.end(),
                                     [&](auto const& l) { return l.time.seconds() <= 1.02 * best.time.seconds(); });
    if (close > 1)
      std::cout << fmt::format("The first {} differ by 2 % or less: less than predictions can tell apart.\n", close);
    std::cout << "The best layout: " << base::join(plan::layout_overrides(best.config), " ") << std::endl;
  }
  if (!wanted.out.empty()) write_file(wanted.out, config::canonical_toml(listed.front().config), "--out");
  if (!wanted.csv.empty()) write_file(wanted.csv, layout_csv(listed, cluster), "--csv");
  if (!wanted.svg.empty()) write_file(wanted.svg, page::to_svg(listed, cluster.name), "--svg");
  return 0;
}

/// The input whose layout another one replaces: its own need suit neither the ranks nor the keys that are fixed.
/// Refuses one without batch.global, as a run does that chooses its layout.
config::ParseResult parse_searched(std::string const& input, std::vector<std::string> words,
                                   plan::SearchOptions const& options) {
  int ranks = options.ranks;
  auto result = config::parse_file(input, words, ranks);
  if (!result.config) result = config::parse_file(input, words, ranks = 0);
  if (!result.config && options.ranks > 0) {
    auto alone = words;
    std::vector<std::pair<std::string, std::string>> one_rank{
        {"batch.micro", "1"}, {"parallel.sequence", "false"}, {"memory.shard", "none"}};
    for (auto const& row : config::axis_table)
      if (row.has_key) one_rank.emplace_back(row.key, "1");
    for (auto const& [key, value] : one_rank)
      if (std::find(options.fixed.begin(), options.fixed.end(), key) == options.fixed.end())
        alone.push_back(key + "=" + value);
    if (auto other = config::parse_file(input, alone, 0); other.config) {
      result = std::move(other);
      words = std::move(alone);
    }
  }
  if (!result.config) return result;
  words.emplace_back("parallel.layout=auto");
  for (auto const& error : config::parse_file(input, words, ranks).errors)
    if (error.key == "batch.global")
      base::refuse({.expected = "batch.global where the layout is chosen: no layout may change the losses",
                    .found = "none",
                    .where = input.empty() ? "command line" : input,
                    .fix = "set batch.global to the samples of a step: p3d plan FILE batch.global=N"});
  return result;
}

}  // namespace

int plan_command(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "grade") return grade_command(argc - 1, argv + 1);
  CLI::App app{"The layouts of a model on a machine that need not be at hand, best first."};
  app.name("p3d plan");
  app.footer(plan_footer);
  std::vector<std::string> words, fixed;
  std::string cluster_file, kernels = "auto";
  plan::SearchOptions options;
  options.ranks = 0;
  Wanted wanted;
  bool as_is = false;
  app.add_option("input", words, "input.toml, then overrides of its keys: section.key=value")
      ->type_name("FILE [KEY=VALUE ...]");
  app.add_option("--cluster", cluster_file, "file that describes the machine")->required();
  app.add_option("--ranks", wanted.ranks, "number of ranks to assume; of several, N,N,..., the best layout of each")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N[,N...]")
      ->check(count_from(1, most_planned_ranks));
  app.add_option("--fix", fixed, "a key of the layout that keeps this value: parallel.tp=8")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  app.add_option("--top", options.top, "number of layouts to list")->check(count_from(1, 1000))->capture_default_str();
  app.add_option("--kernels", kernels,
                 "generation of the software: unfused, fused, flash, fp8 or host; auto: as the cluster file says")
      ->capture_default_str();
  app.add_flag("--front", options.front, "list only layouts that no quicker one needs less memory than");
  app.add_option("--what-if", wanted.what_if,
                 "the best layout with another constant of the cluster: level2.bandwidth=2x")
      ->allow_extra_args(false)
      ->type_name("CONSTANT=FACTORx");
  app.add_option("--out", wanted.out, "write the best layout as an input file");
  app.add_option("--csv", wanted.csv, "write the layouts with all parts of their steps into this file");
  app.add_option("--svg", wanted.svg, "draw the parts of the layouts' steps into this file");
  app.add_flag("--as-is", as_is, "predict the layout of the input, search none");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  options.ranks = wanted.ranks.empty() ? 0 : wanted.ranks.front();
  if (as_is && (wanted.ranks.size() > 1 || !wanted.what_if.empty()))
    throw wrong_words("--as-is with one number of ranks and the cluster as it is",
                      wanted.what_if.empty() ? "several --ranks" : "--what-if", "remove one of the two options");
  if (as_is) {
    for (auto const& [name, given] :
         {std::pair{"--front", options.front}, {"--top", app.count("--top") > 0}, {"--out", !wanted.out.empty()}})
      if (given)
        throw wrong_words(fmt::format("--as-is, of the input's own layout, without {}", name), name,
                          "remove one of the two options");
  }
  if (wanted.ranks.size() > 1) {
    // A line for each number of ranks, with the quickest layout.
    for (auto const& [name, given] : {std::pair{"--front", options.front},
                                      {"--top", app.count("--top") > 0},
                                      {"--what-if", !wanted.what_if.empty()},
                                      {"--out", !wanted.out.empty()}})
      if (given)
        throw wrong_words(fmt::format("one number of ranks with {}", name), "several --ranks",
                          "remove one of the two options");
  }
  auto [input, overrides] = input_words(words);
  wanted.require_no_input_among_files({input, cluster_file});
  for (auto const& word : fixed) {
    auto const& keys = config::layout_keys();
    auto const key = word.substr(0, word.find('='));
    if (std::find(options.fixed.begin(), options.fixed.end(), key) != options.fixed.end())
      throw wrong_words("--fix once for each key", fmt::format("{} again: --fix {}", key, word),
                        "remove one of the two");
    options.fixed.push_back(key);
    if (std::find(keys.begin(), keys.end(), options.fixed.back()) == keys.end())
      throw wrong_words("a key that the search chooses: " + base::join(keys), "--fix " + word,
                        "set other keys without --fix: p3d plan FILE KEY=VALUE");
    overrides.push_back(word);
  }
  auto const cluster = config::parse_cluster_file(cluster_file);
  auto const& generation = plan::kernels_of(kernels, "--kernels",
                                            cluster.cluster ? cluster.cluster->kernels : config::PlannedKernels::flash);
  auto result = as_is ? config::parse_file(input, overrides, options.ranks) : parse_searched(input, overrides, options);
  std::cerr << config::format(result.errors) << config::format(cluster.errors) << std::flush;
  if (!result.config || !cluster.cluster) return static_cast<int>(base::ExitCode::bad_input);
  if (!as_is) {
    if (options.ranks == 0) options.ranks = result.config->num_ranks();
    return run(*result.config, *cluster.cluster, generation, options, wanted);
  }
  cluster.cluster->require_room(result.config->num_ranks());
  result.config = engine::choose_memory(*result.config).config;
  plan::PlannedLayout const own{*result.config, plan::predict_step(*result.config, *cluster.cluster, generation),
                                plan::predicted_bytes(*result.config, generation)};
  std::cout << plan::describe(own.config, *cluster.cluster, own.time, own.bytes)
            << plan::sensitivity(own.config, *cluster.cluster, generation) << std::flush;
  if (!wanted.csv.empty()) write_file(wanted.csv, layout_csv({own}, *cluster.cluster), "--csv");
  if (!wanted.svg.empty()) write_file(wanted.svg, page::to_svg({own}, cluster.cluster->name), "--svg");
  return 0;
}

}  // namespace p3d::app
