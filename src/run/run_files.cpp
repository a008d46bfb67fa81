// SPDX-License-Identifier: Apache-2.0
// Nothing that an earlier run wrote is lost. A run that starts at step 0 renames the files that it finds; one that goes
// on copies the rows up to its start, and keeps the old file under a second name when that held more. An example: with
// metrics.csv up to step 120 and a checkpoint of step 100, the rows 1 to 100 go into the new metrics.csv, and the old
// one becomes metrics.1.csv.
#include "run_files.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/plan/run_summary.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace p3d::run {

namespace fs = std::filesystem;

std::string from_here(std::string const& path) {
  std::error_code none;
  auto const shown = fs::proximate(path, none).string();
  return none ? path : shown;
}

namespace {

/// The files that a run writes beside its checkpoints. metrics.csv comes last: it is what tells that there was a run,
/// so that a kill between two renames loses nothing.
constexpr std::array<char const*, 8> names{"experts.csv", "timers.csv",   "trace.json",    "trace.svg",
                                           "costs.csv",   "summary.json", "resolved.toml", "metrics.csv"};

/// The name "metrics.3.csv" for "metrics.csv" and 3.
std::string numbered(fs::path const& name, int n) {
  return fmt::format("{}.{}{}", name.stem().string(), n, name.extension().string());
}

/// Gives the files of an earlier run names with the first number that is free for all of them. With `moves` they lose
/// their own names; otherwise they have both names until they are replaced, so that no moment is without a history.
void keep_older(fs::path const& folder, bool moves) {
  auto const taken = [&](int n) {
    return std::any_of(names.begin(), names.end(), [&](auto name) { return fs::exists(folder / numbered(name, n)); });
  };
  int n = 1;
  while (taken(n)) ++n;
  std::vector<std::string> kept;
  for (auto const* name : names) {
    auto const path = folder / name;
    std::error_code unknown;
    if (!fs::is_regular_file(path, unknown)) continue;
    kept.push_back(numbered(name, n));
    auto const to = folder / kept.back();
    std::error_code no_links;
    if (moves) {
      fs::rename(path, to);
    } else if (fs::create_hard_link(path, to, no_links); no_links) {
      fs::copy_file(path, to);
    }
  }
  base::log_root(
      fmt::format("The files of an earlier run in {} are kept: {}", from_here(folder.string()), base::join(kept)));
}

/// The name of the run whose files lie in a folder; "" where no summary says it.
std::string name_of_run(std::string const& folder) {
  try {
    auto const path = folder + "/summary.json";
    return fs::exists(path) ? plan::parse_summary(io::read_text(path), path).run : "";
  } catch (base::Error const&) {
    return "";
  }
}

/// The rows of an earlier metrics.csv up to step `start`; a file that holds anything else, or is of a run of another
/// name, is kept under another name.
io::MetricsHistory take_over(std::string const& folder, std::int64_t start, bool predicts, std::string const& run) {
  auto const path = folder + "/metrics.csv";
  io::FileOperation const here("read or rename", path);
  if (!fs::exists(path)) return {};
  if (start == 0) {
    keep_older(folder, true);
    return {};
  }
  if (auto const other = name_of_run(folder); !other.empty() && other != run) {
    base::warn_root(
        fmt::format("{} is of the run \"{}\": the rows of the {} steps of \"{}\" before this start are not there", path,
                    other, start, run));
    keep_older(folder, true);
    return {};
  }
  try {
    auto history = io::metrics_until(path, start, predicts);
    if (history.dropped > 0) keep_older(folder, false);
    if (history.missing > 0) {
      base::warn_root(
          fmt::format("{} lacks the rows of {} of the {} steps before this start", path, history.missing, start));
    }
    return history;
  } catch (base::Error const& e) {
    base::warn_root(e.what());
    keep_older(folder, false);
    return {};
  }
}

/// Removes what killed starts were writing (io::write_text_atomically). The folder is locked, so none is being written.
void remove_unfinished(fs::path const& folder) {
  constexpr std::string_view end = ".tmp";
  for (auto const& entry : fs::directory_iterator(folder)) {
    auto const file = entry.path().filename().string();
    bool const ours = std::ranges::any_of(names, [&](std::string_view name) {
      if (file.size() <= name.size() + 1 + end.size() || !file.starts_with(name) || !file.ends_with(end)) return false;
      auto const number = std::string_view(file).substr(name.size(), file.size() - name.size() - end.size());
      return number[0] == '.' && number.find_first_not_of("0123456789", 1) == std::string_view::npos;
    });
    std::error_code ignored;
    if (ours) fs::remove(entry.path(), ignored);
  }
}

/// Makes the folder; returns what is wrong with it, empty when nothing is.
std::string make(std::string const& folder) {
  try {
    io::make_folder(folder);
  } catch (base::Error const& e) {
    return e.text().found;
  }
  return access(folder.c_str(), W_OK | X_OK) == 0 ? "" : "a folder that may not be written";
}

}  // namespace

void make_output_folder(std::string const& folder, comm::Communicator& world) {
  comm::agree_on_root(world, [&] {
    std::string problem;
    io::apart([&] { problem = make(folder); });
    if (problem.empty()) return;
    base::refuse({.expected = "a folder for results that can be made and written",
                  .found = problem,
                  .where = fmt::format("run.output_dir = \"{}\"", folder),
                  .fix = "check its parent folders and permissions, or set run.output_dir to another folder"});
  });
}

RunFiles::RunFiles(config::Config const& config, std::int64_t start)
    : folder_(config.run.output_dir), predicts_(config.model.mtp.on()) {
  io::make_folder(folder_);
  try {
    remove_unfinished(folder_);
    taken_over_ = take_over(folder_, start, predicts_, config.run.name);
  } catch (fs::filesystem_error const& e) {
    throw base::Error(
        {.expected = "files of an earlier run (metrics.csv and others) that can be kept under other names",
         .found = e.code().message(),
         .where = folder_,
         .fix = "check the folder's permissions and the free space"});
  }
  // Where no step is left, the file says what the steps were made with.
  auto const resolved = folder_ + "/resolved.toml";
  if (start < config.run.steps || !fs::exists(resolved))
    io::write_text_atomically(resolved, config::canonical_toml(config));
  metrics_ = std::make_unique<io::MetricsWriter>(folder_, taken_over_.lines, predicts_);
}

void RunFiles::add_evaluation(double loss) {
  if (!lacks_evaluation()) return;
  taken_over_.last->eval_loss = loss;
  taken_over_.lines.back() = format(*taken_over_.last);
  try {
    metrics_ = std::make_unique<io::MetricsWriter>(folder_, taken_over_.lines, predicts_);
  } catch (base::Error const& e) {
    base::warn_root(e.what());
  }
}

void RunFiles::write(base::MetricsRow const& row) {
  taken_over_ = {};
  waiting_.push_back(row);
  write_waiting();
}

void RunFiles::write_waiting() {
  try {
    for (; !waiting_.empty(); waiting_.pop_front()) metrics_->write(waiting_.front());
    if (!why_.empty()) base::warn_root("metrics.csv can be written again; no row is missing");
    why_.clear();
  } catch (base::Error const& e) {
    if (why_.empty())
      base::warn_root(fmt::format("no row of step {} in the history; the run goes on and tries again at every step\n{}",
                                  waiting_.front().step, e.what()));
    why_ = e.what();
  }
}

void RunFiles::flush() noexcept {
  try {
    metrics_->flush();
  } catch (base::Error const&) {  // missing() looks again and reports
  }
}

std::string RunFiles::missing() {
  write_waiting();
  try {
    if (why_.empty()) metrics_->check(), metrics_->flush();
  } catch (base::Error const& e) {
    why_ = e.what();
  }
  return why_;
}

}  // namespace p3d::run
