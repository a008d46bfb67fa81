// SPDX-License-Identifier: Apache-2.0
// Lists, shows, checks, compares and deletes checkpoints. Each subcommand is a function here that reads files by
// io::read_checkpoint() and the tools of io/checkpoint_tools.hpp, prints lines, and returns its exit code. Example:
// "p3d checkpoint verify FILE" prints "FILE: good (seal and 150 arrays)" and returns 0.
#include "checkpoint_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/optimizer_state.hpp>
#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/io/checkpoint_tools.hpp>
#include <p3d/io/model_files.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

namespace p3d::app {

namespace {

/// The shape of an array in words; a vector is stored as one row.
std::string shape(std::int64_t rows, std::int64_t cols, bool vector) {
  return vector ? fmt::format("[{}]", cols) : fmt::format("[{}, {}]", rows, cols);
}

// The exit code for files that cannot be read as checkpoints.
constexpr int refused = static_cast<int>(base::ExitCode::bad_input);

/// The checkpoints of a folder that exists. For a run a missing folder has no checkpoints, as it will make it; here it
/// is a mistake.
std::vector<io::CheckpointFile> look_into(std::string const& folder, std::string const& run_name) {
  std::error_code why;
  bool const there = std::filesystem::is_directory(folder, why);
  if (there) return io::find_checkpoints(folder, run_name);
  base::refuse({.expected = "a folder of checkpoints",
                .found = why ? why.message() : "something else",
                .where = folder.empty() ? "\"\"" : folder,
                .fix = "name the folder (checkpoint.dir; by default checkpoints in run.output_dir)"});
}

/// The folder itself, or the one with the checkpoints of the run whose folder it is.
std::string with_checkpoints(std::string const& folder) {
  std::error_code ignored;
  auto const inner = (std::filesystem::path(folder) / "checkpoints").string();
  if (!std::filesystem::is_directory(inner, ignored) || !look_into(folder, "").empty()) return folder;
  return inner;
}

/// Throws when some files are named like checkpoints and are not valid. Returns 0.
int refuse_damaged(std::vector<io::CheckpointFile> const& files, std::string const& folder) {
  auto const n = std::count_if(files.begin(), files.end(), [](auto const& f) { return !f.valid; });
  if (n == 0) return 0;
  base::refuse({.expected = "valid checkpoints",
                .found = fmt::format("{} of {} damaged (above)", n, base::counted(std::ssize(files), "file")),
                .where = folder,
                .fix = "copy them again, or delete them"});
}

/// Prints a line for each checkpoint of a folder, damaged ones included.
int list(std::string const& folder) {
  auto const files = look_into(folder, "");
  if (files.empty()) {
    say("no checkpoints in " + folder);
    return 0;
  }
  say(fmt::format("{:<24} {:>12} {:>12}  {:<8} {}", "run", "step", "bytes", "seal", "file"));
  for (auto const& f : files) {
    say(fmt::format("{:<24} {:>12} {:>12}  {:<8} {}", base::printable_line(f.run_name), f.step,
                    base::human_bytes(static_cast<double>(f.file_bytes)), f.valid ? "good" : "DAMAGED",
                    base::printable_line(f.path)));
    if (!f.valid) say("    " + base::printable_line(f.error));
  }
  return refuse_damaged(files, folder);
}

/// Throws when numbers of arrays were changed after they were written, with the exit code that `verify` has for it.
void require_undamaged(std::string const& path, std::vector<std::string> const& damaged) {
  if (damaged.empty()) return;
  throw base::Error({.expected = "arrays with their checksums",
                     .found = fmt::format("{} with other numbers than were written: {}",
                                          base::counted(std::ssize(damaged), "array"), base::join(damaged)),
                     .where = path,
                     .fix = "copy the file again, or take another checkpoint"},
                    base::ExitCode::run_failed);
}

/// Prints what a checkpoint holds: its header and a line for each array. `norms`: reads the arrays too, and checks
/// them. `input`: prints the input of the run alone, to be stored in a file.
int show(std::string const& path, bool norms, bool input) {
  auto const c = io::read_checkpoint(path);
  if (input) {
    std::fputs(base::printable(c.header.input).c_str(), stdout);  // TOML as p3d writes it is unchanged by this
    return 0;
  }
  auto const& h = c.header;
  std::int64_t parameters = 0;
  for (auto const& row : c.table) parameters += row.rows * row.cols;
  auto const has = [&](config::StateArray const& kind) {
    return std::ranges::any_of(c.arrays, [&](auto const& a) { return a.is_of(kind.group()); });
  };
  say(fmt::format("file          {} ({}, {} arrays)", path, base::human_bytes(static_cast<double>(c.file_bytes)),
                  c.arrays.size()));
  say(fmt::format("written by    p3d {}", h.p3d_version));
  say(fmt::format("step          {}\ntokens        {}\nnext sample   {}\nseed          {}\ndata hash     {:016x}",
                  h.step, h.tokens, h.samples, h.seed, h.data_hash));
  say(fmt::format("precision     {}\nparameters    {} ({})\nmoments       {}", io::name(h.element), parameters,
                  base::human_count(static_cast<double>(parameters)),
                  has(config::first_moment) ? "first and second" : "none"));
  int workers = 0;
  for (auto kind : {config::worker_share, config::worker_residual})
    for (kind.worker = 0; has(kind); ++kind.worker) workers = kind.worker + 1;
  if (workers > 0)
    say(fmt::format("workers       {}, and what each of them remembers ({})", workers,
                    has(config::applied_gradient) ? config::worker_share.name : config::worker_residual.name));
  auto older = config::previous_weights;
  while (has(older)) ++older.age;
  if (older.age > 1)
    say(fmt::format("versions      {} of the weights: the newest (parameters) and {} before (previous_weights)",
                    older.age, older.age - 1));
  if (!h.origin.empty()) say(fmt::format("began with    {}", h.origin));
  if (!h.tokenizer.name.empty())
    say(fmt::format("tokenizer     {} (hash {:016x})", h.tokenizer.name, h.tokenizer.hash));
  std::vector<std::string> files;
  for (auto const& f : io::stored_model_files(path)) files.push_back(f.name);
  if (!files.empty()) say("model files   " + base::join(files));
  say("");
  say(fmt::format("{:<48} {:>18} {:>6} {:>6}  {:<16}{}", "array", "shape", "layer", "decay", "checksum",
                  norms ? fmt::format(" {:>22} {:>13} {:>13}", "L2 norm", "smallest", "largest") : ""));
  std::vector<std::string> damaged;
  for (std::size_t i = 0; i < c.arrays.size(); ++i) {
    auto const& a = c.arrays[i];
    // The table describes a parameter once, and the file holds it and then each array of the optimizer's state of it.
    auto const& row = c.table[i % c.table.size()];
    auto line = fmt::format("{:<48} {:>18} {:>6} {:>6}  {:016x}", a.name, shape(a.rows, a.cols, row.vector), row.layer,
                            row.decay ? "yes" : "no", a.checksum);
    if (norms) {
      auto const s = io::scan(c, a);
      line += fmt::format(" {:>22.16e} {:>13.6e} {:>13.6e}{}", base::without_sign_of_nan(s.norm), s.smallest, s.largest,
                          s.good ? "" : "  DAMAGED");
      if (!s.good) damaged.push_back(a.name);
    }
    say(line);
  }
  require_undamaged(path, damaged);
  return 0;
}

/// Checks files. Returns 1 when the numbers of an array were changed, 2 when a file cannot be read as a checkpoint.
int verify(std::vector<std::string> const& paths) {
  int worst = 0;
  for (auto const& path : paths) {
    int bad = 0;
    try {
      auto const c = io::read_checkpoint(path);
      for (auto const& a : c.arrays) {
        auto const s = io::scan(c, a);
        if (s.good) continue;
        ++bad;
        say(fmt::format("{}: {}: expected checksum {:016x}, found {:016x}", path, a.name, a.checksum, s.checksum));
      }
      if (bad == 0) say(fmt::format("{}: good (seal and {} arrays)", path, c.arrays.size()));
      worst = std::max(worst, bad > 0 ? 1 : 0);
    } catch (base::Error const& e) {
      say(fmt::format("{}: expected {}, found {}", path, e.text().expected, e.text().found));
      worst = refused;
    }
  }
  return worst;
}

/// Compares two files. Returns 1 when they differ.
int diff(std::string const& path_a, std::string const& path_b) {
  auto const a = io::read_checkpoint(path_a), b = io::read_checkpoint(path_b);
  int different = 0;
  auto const compare = [&](char const* what, auto const& x, auto const& y) {
    if (x == y) return;
    ++different;
    say(fmt::format("{}: {} | {}", what, x, y));
  };
  compare("step", a.header.step, b.header.step);
  compare("tokens", a.header.tokens, b.header.tokens);
  compare("next sample", a.header.samples, b.header.samples);
  compare("seed", a.header.seed, b.header.seed);
  compare("data hash", a.header.data_hash, b.header.data_hash);
  compare("precision", std::string(io::name(a.header.element)), std::string(io::name(b.header.element)));
  double largest = 0.0;
  std::string where;  // "": nowhere
  auto const all = io::difference(a, b);
  for (auto const& d : all) {
    if (!d.only_in.empty()) {
      ++different;
      say(fmt::format("{}: only in {}, with this shape", d.name, d.only_in));
      continue;
    }
    for (auto const& file : d.damaged_in) say(fmt::format("{}: damaged in {}", d.name, file));
    if (d.differing == 0 && d.damaged_in.empty()) continue;
    ++different;
    if (d.differing == 0) continue;
    say(fmt::format("{}: {} differ, most by {:.3e} at [{}, {}]: {} | {}", d.name, base::counted(d.differing, "element"),
                    d.largest, d.row, d.col, base::without_sign_of_nan(d.a), base::without_sign_of_nan(d.b)));
    if (where.empty() || d.largest > largest) {
      largest = d.largest;
      where = fmt::format("{} [{}, {}]", d.name, d.row, d.col);
    }
  }
  // The input may name other folders or another layout. That is no difference of the state; `show --input` shows it.
  if (a.header.input != b.header.input) say("note: the inputs differ (p3d checkpoint show --input FILE)");
  auto const compared = base::counted(static_cast<std::int64_t>(all.size()), "array") + " compared: ";
  if (!where.empty())
    say(fmt::format("{}largest difference {:.3e} at {}", compared, largest, where));
  else
    say(compared + (different > 0 ? "no number differs in what both files have" : "both files have the same state"));
  return different > 0 ? 1 : 0;
}

/// Deletes old checkpoints of each run, after the newest one has been verified.
int prune(std::string const& folder, std::int64_t keep, std::string const& run_name) {
  std::map<std::string, io::CheckpointFile> newest;
  auto const files = look_into(folder, run_name);
  if (files.empty() && !run_name.empty())
    base::refuse({.expected = fmt::format("checkpoints of \"{}\"", run_name),
                  .found = "none",
                  .where = folder,
                  .fix = "p3d checkpoint ls lists the runs of a folder"});
  for (auto const& f : files) {
    if (f.valid)
      newest[f.run_name] = f;
    else
      say(fmt::format("{}: {}", f.path, f.error));
  }
  for (auto const& [name, file] : newest) {
    if (auto const code = verify({file.path}); code != 0) {  // the older ones may be all that is good
      say("nothing of \"" + name + "\" is deleted: its newest checkpoint is damaged");
      return code;
    }
    for (auto const& path : io::prune_checkpoints(folder, name, file.step, keep)) say("deleted " + path);
  }
  return refuse_damaged(files, folder);
}

}  // namespace

int checkpoint_command(int argc, char** argv) {
  if (launcher_rank() != 0) return 0;  // started on several ranks by mistake: one rank does the work
  CLI::App app{"Lists, shows, checks, compares and deletes checkpoints. One process is enough."};
  app.name("p3d checkpoint");
  app.require_subcommand(1);
  std::string path, other, run_name;
  std::vector<std::string> paths;
  std::int64_t keep = 0;
  bool norms = false, input = false;
  auto* ls =
      app.add_subcommand("ls", "list the checkpoints of a folder, or of a run's; exit code 2 when one is damaged");
  ls->add_option("folder", path, "folder")->required();
  auto* sh = app.add_subcommand("show", "what is in a checkpoint");
  sh->add_option("file", path, "checkpoint")->required();
  sh->add_flag("--norms", norms,
               "read the arrays: L2 norm, smallest and largest element; exit code 1 when numbers were changed");
  sh->add_flag("--input", input, "print the input of the run (TOML) and nothing else");
  auto* ve = app.add_subcommand(
      "verify",
      "read everything and compare seal and checksums; exit code 1 when numbers were changed, 2 when "
      "a file cannot be read as a checkpoint");
  ve->add_option("files", paths, "checkpoints")->required();
  auto* di = app.add_subcommand(
      "diff",
      "compare two checkpoints array by array; exit code 1 when they differ, or when numbers of one were "
      "changed after it was written");
  di->add_option("a", path, "checkpoint")->required();
  di->add_option("b", other, "checkpoint")->required();
  auto* pr = app.add_subcommand(
      "prune", "verify the newest checkpoint of each run in a folder, then delete all but the newest N");
  pr->add_option("folder", path, "folder")->required();
  pr->add_option("--keep", keep, "how many stay")->required()->check(count_from(1, 1'000'000'000));
  pr->add_option("--run", run_name, "only the checkpoints of this run");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (*ls) return list(with_checkpoints(path));
  if (*sh) return show(path, norms, input);
  if (*ve) return verify(paths);
  if (*di) return diff(path, other);
  return prune(with_checkpoints(path), keep, run_name);
}

}  // namespace p3d::app
