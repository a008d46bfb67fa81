#include "command_line.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/version.hpp>
#include <p3d/config/parse.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>

namespace p3d::app {

namespace {

constexpr char const* footer =
    "Examples:\n"
    "  mpiexec -n 8 p3d inputs/quickstart.toml\n"
    "  srun p3d input.toml parallel.tp=4 run.steps=10\n"
    "  p3d --check input.toml --ranks 512          no ranks needed: mesh, layers, parameters, memory\n"
    "\n"
    "Exit codes: 0 done; 1 failed while running; 2 bad input, nothing started; 3 a wait outlasted comm.timeout_s;\n"
    "            4 the loss or a gradient became NaN or infinite; 75 stopped by a signal at a step boundary.\n"
    "SIGINT and SIGTERM end the run after the current step; a second one ends it at once.";

std::string input_help() {
  std::string text = "Keys of the input file (section.key, type, default):\n";
  for (auto const& key : config::key_help()) {
    text += fmt::format("  {:<28} {:<34} {}\n      {}\n", key.key, key.type, key.default_text, key.help);
  }
  text += "Presets: ";
  for (auto const& name : config::preset_names()) text += name + " ";
  return text;
}

/// Options of Kokkos stay for Kokkos.
std::vector<std::string> without_kokkos_options(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 takes a vector in reverse order
    if (!std::string_view(argv[i]).starts_with("--kokkos-")) args.emplace_back(argv[i]);
  }
  return args;
}

}  // namespace

int launcher_rank() {
  for (char const* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (char const* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  bool version = false, keys = false;
  std::vector<std::string> words;
  CLI::App app{"p3d " + base::version() + ": trains transformer language models with data, tensor and pipeline parallelism."};
  app.name("p3d");
  app.footer(footer);
  app.add_option("input", words, "input.toml, then overrides of its keys: section.key=value")->type_name("FILE [KEY=VALUE ...]");
  app.add_flag("--check", line.check, "check the input, print what would run, start nothing");
  app.add_option("--ranks", line.ranks, "with --check: number of ranks to assume")->check(CLI::PositiveNumber);
  app.add_flag("--help-input", keys, "list every key of the input file with its default");
  app.add_flag("--version", version, "print version, git hash and what p3d was built with");

  bool const speaks = launcher_rank() == 0;
  auto const leave = [&](int code) {
    line.finished = true;
    line.exit_code = code;
    return line;
  };
  try {
    app.parse(without_kokkos_options(argc, argv));
  } catch (CLI::ParseError const& e) {
    std::ostringstream out, err;
    int const code = app.exit(e, out, err);
    if (speaks) std::cout << out.str() << std::flush;
    if (speaks) std::cerr << err.str() << std::flush;
    return leave(code == 0 ? 0 : static_cast<int>(base::ExitCode::bad_input));
  }
  if (version || keys) {
    if (speaks) std::cout << (version ? base::build_description() : input_help()) << std::endl;
    return leave(0);
  }
  for (auto const& word : words) {
    if (word.find('=') != std::string::npos) {
      line.overrides.push_back(word);
    } else if (line.input.empty()) {
      line.input = word;
    } else {
      if (speaks) std::cerr << fmt::format("expected: one input file and overrides of the form section.key=value\nfound:    a second file name, {}\nfix:      p3d {} section.key=value\n", word, line.input);
      return leave(static_cast<int>(base::ExitCode::bad_input));
    }
  }
  if (words.empty()) {
    if (speaks) std::cerr << app.help() << std::flush;
    return leave(static_cast<int>(base::ExitCode::bad_input));
  }
  return line;
}

}  // namespace p3d::app
