// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step on a machine that cluster.toml describes. Example: "p3d plan inputs/llama3-8b.toml
// --cluster inputs/clusters/dgx-h100.toml --ranks 64" prints what the step of that layout takes and why. "p3d plan
// grade" compares such predictions with measured runs.
#include "plan_command.hpp"

#include "command_line.hpp"
#include "plan_grade.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/cluster.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/step_time.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

namespace p3d::app {
namespace {

constexpr char const* plan_footer =
    "Examples:\n"
    "  p3d plan inputs/llama3-8b.toml --cluster inputs/clusters/dgx-h100.toml --ranks 64\n"
    "  p3d plan inputs/llama3-8b.toml parallel.tp=2 parallel.pp=4 --cluster inputs/clusters/frontier.toml --ranks 64\n"
    "  p3d plan grade benchmarks/plan/rows.csv --clusters inputs/clusters --csv residuals.csv\n"
    "\n"
    "The prediction is of this layout, from the data of the machine alone: no rank is started, nothing is measured. "
    "docs/plan.md says\nhow it is made and how far it was off on published runs.";

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

}  // namespace

int plan_command(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "grade") return grade_command(argc - 1, argv + 1);
  CLI::App app{"The time of a step on a machine that need not be at hand."};
  app.name("p3d plan");
  app.footer(plan_footer);
  std::vector<std::string> words;
  std::string cluster_file, kernels = "flash";
  int ranks = 0;
  app.add_option("input", words, "input.toml, then overrides of its keys: section.key=value")
      ->type_name("FILE [KEY=VALUE ...]");
  app.add_option("--cluster", cluster_file, "file that describes the machine")->required();
  app.add_option("--ranks", ranks, "number of ranks to assume")->check(count_from(1, most_ranks));
  app.add_option("--kernels", kernels, "generation of the software: unfused, fused, flash or fp8")
      ->capture_default_str();
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (launcher_rank() != 0) return 0;
  std::string input;
  std::vector<std::string> overrides;
  for (auto const& word : words)
    (word.find('=') == std::string::npos && input.empty() ? input : overrides.emplace_back()) = word;
  auto const result = config::parse_file(input, overrides, ranks);
  auto const cluster = config::parse_cluster_file(cluster_file);
  std::cerr << config::format(result.errors) << config::format(cluster.errors) << std::flush;
  if (!result.config || !cluster.cluster) return static_cast<int>(base::ExitCode::bad_input);
  auto const time = plan::predict_step(*result.config, *cluster.cluster, plan::kernels_of(kernels, "--kernels"));
  std::cout << plan::describe(*result.config, *cluster.cluster, time) << std::flush;
  return 0;
}

}  // namespace p3d::app
