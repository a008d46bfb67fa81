// SPDX-License-Identifier: Apache-2.0
// Measures the machine that it runs on and writes what the planner wants to know of it. Example: "mpiexec -n 4 p3d plan
// calibrate --out here.toml", then "p3d plan input.toml --cluster here.toml --ranks 4".
#include "calibrate_command.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/enum_names.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/run/machine_trial.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iostream>

namespace p3d::app {
namespace {

constexpr char const* calibrate_footer =
    "Examples:\n"
    "  mpiexec -n 4 p3d plan calibrate --out here.toml\n"
    "  srun --nodes=2 --ntasks-per-node=8 p3d plan calibrate --out cluster.toml --name \"my cluster\"\n"
    "\n"
    "Start as many ranks on a node as runs will have: what ranks share is measured as they share it. Two nodes are "
    "enough for\nany number of them. It takes less than a minute; let nothing else run meanwhile.";

std::string today() {
  auto const now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

/// A line for each kind of measurement.
std::string error_table(plan::Calibration const& result) {
  std::string text = fmt::format("{:<24} {:>8} {:>7} {:>7}\n", "formula against", "timings", "mean", "worst");
  for (auto const& e : result.errors)
    text += fmt::format("{:<24} {:>8} {:>5.1f} % {:>5.1f} %\n", e.what, e.samples, 100 * e.mean, 100 * e.worst);
  return text;
}

int run(comm::Communicator& world, run::MachineTrialOptions options, std::vector<std::string> const& types,
        std::string const& out) {
  comm::agree_on_root(world, [&] { require_writable(out, "--out"); });  // before a minute is spent on it
  options.precisions = run::usual_precisions();
  if (!types.empty()) {
    auto const known = options.precisions;
    options.precisions.clear();
    std::vector<std::string> names;
    for (auto p : known) names.emplace_back(base::to_string(p));
    for (auto const& type : types) {
      auto const found = std::find(names.begin(), names.end(), type);
      if (found == names.end())
        throw wrong_words("types of this build: " + base::join(names), type, "name one of them");
      options.precisions.push_back(known[static_cast<std::size_t>(found - names.begin())]);
    }
  }
  base::Stopwatch const watch;
  bool const root = world.rank() == 0;
  options.progress = [root](std::string const& what) {
    if (root) say("Measuring " + what);
  };
  auto const samples = run::try_machine(options, world);
  auto const result = plan::calibrate(samples);
  comm::agree_on_root(world, [&] {
    auto const head = fmt::format(
        "# Measured by p3d plan calibrate on {}, with {}. Numbers are those of a rank while all ranks\n"
        "# work. docs/plan.md says what they mean; change what you know better.\n",
        today(), base::counted(world.size(), "rank"));
    write_file(out, head + config::cluster_toml(result.cluster, result.notes), "--out");
  });
  if (root) {
    std::cout << '\n' << error_table(result) << std::flush;
    constexpr double quiet = 0.05;
    if (samples.disturbance > quiet)
      base::warn_root(
          fmt::format("the same work took {:.0f} % more or less from time to time, as if something else ran on "
                      "this machine: calibrate once more when it is quiet",
                      100 * samples.disturbance));
    say(fmt::format("Measured in {:.1f} s. Written: {}", watch.seconds(), out));
    say(fmt::format("Next: p3d plan INPUT --cluster {} --ranks {}", out, world.size()));
  }
  return 0;
}

}  // namespace

int calibrate_command(int argc, char** argv) {
  CLI::App app{"Measures this machine and writes the cluster file by which steps are predicted."};
  app.name("p3d plan calibrate");
  app.footer(calibrate_footer);
  run::MachineTrialOptions options;
  std::vector<std::string> types;
  std::string out = "cluster.toml";
  app.add_option("--out", out, "file to write")->capture_default_str();
  app.add_option("--name", options.name, "name of the machine; by default that of the first host");
  app.add_option("--types", types, "types to measure, the one of most runs first; by default all of this build")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("TYPE[,TYPE...]");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  return with_ranks(argc, argv, [&](comm::Communicator& world) { return run(world, options, types, out); });
}

}  // namespace p3d::app
