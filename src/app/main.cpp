// SPDX-License-Identifier: Apache-2.0
// The program p3d. The numbered comments are its steps: parse, check, start, validate, run.

#include "command_line.hpp"
#include "guard.hpp"
#include "mesh_command.hpp"
#include "plan_command.hpp"
#include "schedule_command.hpp"
#include "start.hpp"
#include "tools.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/memory_choice.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/page/schedule_picture.hpp>
#include <p3d/plan/layout_choice.hpp>
#include <p3d/report/describe.hpp>
#include <p3d/run/check_files.hpp>
#include <p3d/run/input.hpp>
#include <p3d/run/run.hpp>

#include <csignal>
#include <iostream>
#include <string_view>

namespace {

using p3d::base::ExitCode;

/// Runs `p3d --check`: everything that needs no other rank, with the files that the input names.
int check(p3d::app::CommandLine const& line) {
  if (p3d::app::launcher_rank() != 0) return 0;
  auto const planned = p3d::plan::parse_planned_file(line.input, line.overrides, line.ranks);
  auto const& result = planned.result;
  if (!result.config) {
    std::cerr << p3d::config::format(result.errors) << std::flush;
    return static_cast<int>(ExitCode::bad_input);
  }
  auto const choice = p3d::engine::choose_memory(*result.config);
  auto const plan = p3d::engine::make_run_plan(choice.config);
  if (line.verbose) std::cout << p3d::config::canonical_toml(choice.config) << '\n';
  std::cout << planned.note << (planned.note.empty() ? "" : "\n") << choice.note << (choice.note.empty() ? "" : "\n")
            << p3d::report::describe(choice.config, plan)
            << (line.verbose ? p3d::plan::buffer_table(choice.config, plan, p3d::engine::platform()) : "")
            << std::flush;
  auto const files = p3d::run::check_files(choice.config);
  for (auto const& note : files.notes) std::cout << p3d::base::printable(note) << std::endl;
  for (auto const& error : files.errors) std::cerr << error.what() << std::endl;
  if (!files.errors.empty()) return static_cast<int>(ExitCode::bad_input);
  std::cout << "The input is valid." << std::endl;
  return 0;
}

/// Trains. Every rank runs this.
int train(p3d::app::CommandLine const& line, p3d::comm::Communicator& world) {
  auto const config = p3d::run::read_input_together(world, line.input, line.overrides);  // 4. validate, once
  // The run puts these back when it ends. A signal that comes still later must not take the exit code of a run whose
  // files are all written.
  for (int const signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_IGN);
  auto const draw = [](auto const& timelines, auto const& title) { return p3d::page::to_svg(timelines, title); };
  return static_cast<int>(p3d::run::run(config, world, line.verbose, draw));  // 5. mesh, model, train, finish
}

/// Finds the command, or trains.
int command(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "schedule") return p3d::app::schedule_command(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == "mesh") return p3d::app::mesh_command(argc - 1, argv + 1);
  if (auto const code = p3d::app::run_tool(argc, argv)) return *code;
  if (argc > 1 && std::string_view(argv[1]) == "plan") return p3d::app::plan_command(argc - 1, argv + 1);
  auto const line = p3d::app::parse_command_line(argc, argv);  // 1. parse the command line
  if (line.finished) return line.exit_code;
  if (line.check) return check(line);                                                        // 2. check only
  return p3d::app::with_ranks(argc, argv, [&](auto& world) { return train(line, world); });  // 3. MPI, then Kokkos
}

}  // namespace

int main(int argc, char** argv) {
  p3d::base::raise_open_files();
  // Ranks that one launcher started agree on their words before any of them acts on its own.
  auto const together = p3d::app::start_together(argc, argv);
  int const code = p3d::app::guarded([&] { return command(argc, argv); });
  return together ? together->exit_code(code) : code;
}
