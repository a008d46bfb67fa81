// SPDX-License-Identifier: Apache-2.0
// Lists the layouts of a model on a machine that cluster.toml describes, by the predicted time of a step. Example: "p3d
// plan inputs/llama3-8b.toml --cluster inputs/clusters/dgx-h100.toml --ranks 64" prints the twenty best that fit, and
// of the first one what its step is spent on. "p3d plan grade" compares such predictions with measured runs.
#include "plan_command.hpp"

#include "command_line.hpp"
#include "plan_grade.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/cluster.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/plan/search.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>

namespace p3d::app {
namespace {

constexpr char const* plan_footer =
    "Examples:\n"
    "  p3d plan inputs/llama3-8b.toml --cluster inputs/clusters/dgx-h100.toml --ranks 64\n"
    "  p3d plan inputs/llama3-8b.toml --cluster inputs/clusters/frontier.toml --ranks 64 --fix parallel.tp=8 --out "
    "run.toml\n"
    "  p3d plan inputs/llama3-8b.toml parallel.tp=2 --cluster inputs/clusters/dgx-h100.toml --ranks 64 --as-is\n"
    "  p3d plan grade benchmarks/plan/rows.csv --clusters inputs/clusters --csv residuals.csv\n"
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
  return grade(rows, clusters, csv, verbose);
}

/// The layouts as a table, best first.
std::string table(plan::SearchResult const& result, config::Cluster const& cluster) {
  std::string text = fmt::format("{:>3} {:>10} {:>21} {:>10} {:>6} {:>11}  {}\n", "", "s/step", "interval", "tokens/s",
                                 "MFU %", "memory", "layout");
  int number = 0;
  for (auto const& l : result.layouts) {
    auto const& c = l.config;
    double const seconds = l.time.seconds(), peak = cluster.peak(c.run.precision);
    text += fmt::format("{:>3} {:>10.4g} {:>21} {:>10} {:>6.1f} {:>11}  {}\n", ++number, seconds,
                        fmt::format("{:.4g} to {:.4g}", l.time.low, l.time.high),
                        base::human_count(static_cast<double>(c.batch.global * c.model.seq_len) / seconds),
                        100 * plan::model_flops_per_step(c) / c.num_ranks() / (seconds * peak),
                        base::human_bytes(l.bytes), plan::layout_of(c));
  }
  return text;
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

int search(config::Config const& config, config::Cluster const& cluster, plan::KernelGeneration const& kernels,
           plan::SearchOptions const& options, std::string const& out) {
  auto const result = plan::search_layouts(config, cluster, kernels, options);
  if (result.layouts.empty()) {
    auto const more = plan::fits_more_ranks(config, cluster, kernels, options);
    base::refuse(
        fmt::format("a layout that fits {} ranks of {} ({} each)", options.ranks, cluster.name,
                    base::human_bytes(cluster.device.memory)),
        fmt::format("none of {} layouts{}", result.predicted,
                    result.least_bytes > 0 ? ": the smallest needs " + base::human_bytes(result.least_bytes) : ""),
        "--ranks",
        more ? fmt::format("take {} ranks: {}", more->config.num_ranks(), plan::layout_of(more->config))
             : "take a smaller model, or free the keys of --fix: more ranks do not help");
  }
  auto const& best = result.layouts.front();
  std::cout << table(result, cluster) << left_out(result) << '\n'
            << plan::describe(best.config, cluster, best.time) << plan::sensitivity(best.config, cluster, kernels);
  auto const overlap = std::count_if(result.layouts.begin(), result.layouts.end(),
                                     [&](auto const& l) { return l.time.seconds() <= 1.02 * best.time.seconds(); });
  if (overlap > 1)
    std::cout << fmt::format("The first {} differ by 2 % or less: less than predictions can tell apart.\n", overlap);
  std::cout << "The best layout: " << base::join(plan::layout_overrides(best.config), " ") << std::endl;
  if (out.empty()) return 0;
  std::ofstream file(out, std::ios::binary);
  file << config::canonical_toml(best.config) << std::flush;
  if (!file)
    base::refuse("a file to write", fmt::format("{} cannot be written", out), "--out",
                 "name a file in a folder that is there");
  return 0;
}

}  // namespace

int plan_command(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "grade") return grade_command(argc - 1, argv + 1);
  CLI::App app{"The layouts of a model on a machine that need not be at hand, best first."};
  app.name("p3d plan");
  app.footer(plan_footer);
  std::vector<std::string> words, fixed;
  std::string cluster_file, kernels = "flash", out;
  plan::SearchOptions options;
  options.ranks = 0;
  bool as_is = false;
  app.add_option("input", words, "input.toml, then overrides of its keys: section.key=value")
      ->type_name("FILE [KEY=VALUE ...]");
  app.add_option("--cluster", cluster_file, "file that describes the machine")->required();
  app.add_option("--ranks", options.ranks, "number of ranks to assume")->check(count_from(1, most_ranks));
  app.add_option("--fix", fixed, "a key of the layout that keeps this value: parallel.tp=8")->type_name("KEY=VALUE");
  app.add_option("--top", options.top, "number of layouts to list")->check(count_from(1, 1000))->capture_default_str();
  app.add_option("--kernels", kernels, "generation of the software: unfused, fused, flash or fp8")
      ->capture_default_str();
  app.add_option("--out", out, "write the best layout as an input file");
  app.add_flag("--as-is", as_is, "predict the layout of the input, search none");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  std::string input;
  std::vector<std::string> overrides;
  for (auto const& word : words)
    (word.find('=') == std::string::npos && input.empty() ? input : overrides.emplace_back()) = word;
  for (auto const& word : fixed) {
    auto const& keys = plan::search_keys();
    options.fixed.push_back(word.substr(0, word.find('=')));
    if (std::find(keys.begin(), keys.end(), options.fixed.back()) == keys.end())
      throw wrong_words("a key that the search chooses: " + base::join(keys), "--fix " + word,
                        "set other keys without --fix: p3d plan FILE KEY=VALUE");
    overrides.push_back(word);
  }
  auto const& generation = plan::kernels_of(kernels, "--kernels");
  auto const cluster = config::parse_cluster_file(cluster_file);
  auto result = config::parse_file(input, overrides, options.ranks);
  // The input's own layout need not suit the ranks when another one is searched.
  if (!result.config && !as_is) result = config::parse_file(input, overrides, 0);
  std::cerr << config::format(result.errors) << config::format(cluster.errors) << std::flush;
  if (!result.config || !cluster.cluster) return static_cast<int>(base::ExitCode::bad_input);
  if (!as_is) {
    if (options.ranks == 0) options.ranks = result.config->num_ranks();
    return search(*result.config, *cluster.cluster, generation, options, out);
  }
  auto const time = plan::predict_step(*result.config, *cluster.cluster, generation);
  std::cout << plan::describe(*result.config, *cluster.cluster, time)
            << plan::sensitivity(*result.config, *cluster.cluster, generation) << std::flush;
  return 0;
}

}  // namespace p3d::app
