// SPDX-License-Identifier: Apache-2.0
// Rank 0 parses, completes and checks the input; the others parse the complete text that it broadcasts.
#include <p3d/run/input.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/memory_choice.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/layout_choice.hpp>

#include <cstdio>
#include <utility>

namespace p3d::run {

namespace {

/// Prints all errors and throws an error that is not printed again.
[[noreturn]] void refuse(std::string const& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  throw base::ReportedError({.expected = "an input without errors", .found = "one with errors", .where = "", .fix = ""},
                            base::ExitCode::bad_input);
}

/// Makes the plan of the run, to find the errors that depend on the schedule here, where they are reported once. Sets
/// the keys that memory.limit leaves open.
void require_plan(config::Config& config) {
  try {
    auto choice = engine::choose_memory(config);
    config = std::move(choice.config);
    if (!choice.note.empty()) base::log_root(choice.note);
    engine::make_run_plan(config);
  } catch (base::Error const& e) {
    if (e.code() != base::ExitCode::bad_input) throw;
    refuse(std::string("the input has 1 error\n\n") + e.what() + "\n");
  }
}

}  // namespace

config::Config read_input_together(comm::Communicator& world, std::string const& path,
                                   std::vector<std::string> const& overrides) {
  config::ParseResult result;
  std::string text;
  comm::agree_on_root(world, [&] {
    auto planned = plan::parse_planned_file(path, overrides, world.size());
    result = std::move(planned.result);
    if (!result.config) refuse(config::format(result.errors));
    if (!planned.note.empty()) base::log_root(planned.note);
    require_plan(*result.config);
    text = config::canonical_toml(*result.config);
  });
  comm::broadcast_text(world, text, 0);

  // The other ranks check again: a data file may be missing on their node.
  comm::agree(world, "use the input that rank 0 read", [&] {
    if (world.rank() == 0) return;
    result = config::parse_text(text, "the resolved input", "/", {}, world.size());
    if (!result.config) throw config::InputError(result.errors);
  });
  return *std::move(result.config);
}

}  // namespace p3d::run
