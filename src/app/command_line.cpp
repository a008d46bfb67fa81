// SPDX-License-Identifier: Apache-2.0
// Parses the command line of p3d and prints its help. A word with "=" is an override, and the first other word is the
// input file. When a second file follows, the first one may be a misspelt command: then the nearest command is named.
// Example: "p3d input.toml run.steps=10 --check".
#include "command_line.hpp"
#include "version_text.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/version.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/config/parse.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

namespace p3d::app {

namespace {

constexpr char const* usage = "Usage: p3d [OPTIONS] FILE [KEY=VALUE ...]";

constexpr char const* footer =
    "Examples:\n"
    "  mpiexec -n 8 p3d inputs/quickstart.toml\n"
    "  srun p3d input.toml parallel.tp=4 run.steps=10\n"
    "  p3d --check inputs/llama3-8b.toml --ranks 64   no ranks needed: mesh, layers, parameters, memory\n"
    "  p3d mesh input.toml --ranks 64 --rank 5      a rank's coordinates, groups and neighbours; without --rank, all\n"
    "  p3d plan input.toml --cluster FILE --ranks 64   the layouts on a machine, best first; p3d plan grade, "
    "calibrate\n"
    "  p3d schedule compare input.toml              the pipeline's schedules: show, check, simulate, compare\n"
    "  p3d checkpoint ls|show|verify|diff|prune PATH ...   what is in checkpoints\n"
    "  p3d data show|head|check|stats FILE ...      what is in files of tokens\n"
    "  p3d generate CHECKPOINT --prompt \"The \"     text from a trained model; p3d eval CHECKPOINT: its loss\n"
    "  p3d report RUN ... --out report.html         a page with the curves and numbers of runs\n"
    "  p3d import FOLDER OUT.h5                     a model in Hugging Face form; p3d export CHECKPOINT FOLDER: back\n"
    "  p3d data tokenize TEXT ... --tokenizer FILE --out PREFIX   text to token files; p3d tokenizer train: the FILE\n"
    "\n"
    "Exit codes: 0 done; 1 failed while running; 2 bad input, nothing started; 3 a wait outlasted comm.timeout_s,\n"
    "            or a call on a file run.file_timeout_s; 4 the loss or a gradient became NaN or infinite;\n"
    "            5 a checkpoint could not be written;\n"
    "            6 stopped by a signal or run.time_limit with checkpoint.every = 0, so that nothing was saved;\n"
    "            75 stopped by a signal or run.time_limit after a checkpoint: start again to go on.\n"
    "SIGINT, SIGTERM and SIGUSR1 end the run after the current step; a second signal ends it at once.";

/// Wraps the words of a text into lines of at most 100 columns, each after `indent` spaces.
std::string wrapped(std::string const& text, std::size_t indent) {
  std::string out, line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > 100) {
      out += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += line.empty() ? word : " " + word;
  }
  return out + std::string(indent, ' ') + line + "\n";
}

/// The text of --help-input: every key with its default, its help and its type.
std::string input_help() {
  std::string text =
      "Keys of the input file. Each may also be set on the command line: p3d input.toml section.key=value\n";
  std::string section;
  for (auto const& key : config::key_help()) {
    auto const dot = key.key.find('.');
    if (key.key.substr(0, dot) != section) {
      section = key.key.substr(0, dot);
      text += "\n[" + section + "]\n";
    }
    text += fmt::format("  {:<18} default: {}\n", key.key.substr(dot + 1),
                        key.default_text.empty() ? "none" : key.default_text);
    text += wrapped(key.help, 6) + wrapped(key.type, 6);
  }
  return text;
}

/// A hint after a word that was meant as a command: the nearest command, or how training is started.
std::string what_to_type(std::string const& word, std::string const& next) {
  auto const near = base::nearest(word, {"schedule", "mesh", "plan", "checkpoint", "data", "generate", "eval", "report",
                                         "import", "export", "tokenizer"});
  return near.empty() ? fmt::format("p3d {} trains; p3d --help lists the commands", next)
                      : fmt::format("did you mean p3d {} {}? p3d --help lists the commands", near, next);
}

/// Makes the first line of the help "Usage: p3d [OPTIONS] FILE [KEY=VALUE ...]".
struct HelpFormat : CLI::Formatter {
  std::string make_usage(CLI::App const*, std::string) const override { return std::string(usage) + "\n"; }
};

}  // namespace

/// The number of this rank as the launcher gave it; known before MPI is started.
int launcher_rank() { return comm::launch().rank; }

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  bool version = false, keys = false;
  std::vector<std::string> words;
  CLI::App app{"p3d " + base::version() +
               ": trains transformer language models with data, tensor, pipeline, context and expert parallelism."};
  app.name("p3d");
  app.formatter(std::make_shared<HelpFormat>());
  app.footer(footer);
  app.add_option("FILE", words, "the input, a TOML file, and overrides of its keys: section.key=value")->type_name("");
  app.add_flag("--check", line.check, "check the input, print what would run, start nothing");
  app.add_option("--ranks", line.ranks, "with --check: number of ranks to assume")->check(count_from(1, most_ranks));
  app.add_flag("--verbose", line.verbose,
               "print every key with its value too (as in resolved.toml); with --check also the memory of each buffer");
  app.add_flag("--help-input", keys, "list every key of the input file with its default");
  app.add_flag("--version", version, "print version, git hash, compiler, Kokkos, MPI, HDF5 and BLAS");

  // Every rank parses the same words: one of them prints.
  bool const speaks = launcher_rank() == 0;
  auto const leave = [&](int code) {
    line.finished = true;
    line.exit_code = code;
    return line;
  };
  auto const refuse = [&](std::string expected, std::string found, std::string fix) {
    auto const error = wrong_words(std::move(expected), std::move(found), std::move(fix));
    if (speaks) std::cerr << error.what() << std::endl;
    return leave(static_cast<int>(error.code()));
  };
  try {
    app.parse(reversed_words(argc, argv));
  } catch (CLI::CallForHelp const&) {
    if (speaks) std::cout << app.help() << std::flush;
    return leave(0);
  } catch (CLI::ExtrasError const&) {
    auto const word = app.remaining().empty() ? "" : app.remaining().front();
    auto const known = base::nearest(word, {"--check", "--ranks", "--help", "--help-input", "--verbose", "--version"});
    return refuse(usage + 7, "an option that p3d does not have: " + word,
                  known.empty() ? "p3d --help lists the options" : "did you mean " + known + "?");
  } catch (CLI::ParseError const& e) {
    return refuse(usage + 7, e.what(), "p3d --help lists the options");
  }
  if (version || keys) {
    if (speaks) std::cout << (version ? version_text() : input_help()) << std::flush;
    return leave(0);
  }
  for (auto const& word : words) {
    if (word.find('=') != std::string::npos) {
      line.overrides.push_back(word);
    } else if (line.input.empty()) {
      line.input = word;
      // A word without "." and "/" looks like a command more than like a file.
    } else if (line.input.find_first_of("./") == std::string::npos) {
      return refuse(usage + 7, fmt::format("{}, which is no command of p3d, before {}", line.input, word),
                    what_to_type(line.input, word));
    } else {
      return refuse("one input file, and overrides of the form section.key=value",
                    fmt::format("two files: {} and {}", line.input, word),
                    "start p3d once for each, or write the override with =");
    }
  }
  if (words.empty()) {
    return refuse("an input file", "none",
                  "p3d input.toml starts a run; p3d --help says more; p3d --help-input lists the keys of the input");
  }
  if (line.ranks > 0 && !line.check) {
    return refuse("--ranks only with --check", fmt::format("--ranks {}", line.ranks),
                  fmt::format("add --check, or start a run on so many ranks: mpiexec -n {} p3d ...", line.ranks));
  }
  return line;
}

}  // namespace p3d::app
