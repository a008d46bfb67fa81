// SPDX-License-Identifier: Apache-2.0
#include "run_files.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <unistd.h>
#include <vector>

namespace p3d::run {

namespace {

namespace fs = std::filesystem;

/// Gives an older file the first free name. `moves`: that is no longer metrics.csv; otherwise it has both names until
/// it is replaced, so that no moment is without a history.
void keep_older(fs::path const& path, bool moves) {
  for (int n = 1;; ++n) {
    auto const kept = path.parent_path() / fmt::format("metrics.{}.csv", n);
    if (fs::exists(kept)) continue;
    std::error_code no_links;
    if (moves) {
      fs::rename(path, kept);
    } else if (fs::create_hard_link(path, kept, no_links); no_links) {
      fs::copy_file(path, kept);
    }
    base::log_root(fmt::format("The history of an earlier run in this folder is kept as {}", kept.string()));
    return;
  }
}

/// The lines of the steps up to `start`; an older file that holds anything else is kept.
std::vector<std::string> take_over(fs::path const& path, std::int64_t start) {
  auto const text = path.string();
  io::FileOperation const here("read or rename", text);
  if (!fs::exists(path)) return {};
  if (start == 0) {
    keep_older(path, true);
    return {};
  }
  try {
    auto history = io::metrics_until(path.string(), start);
    if (history.dropped > 0) keep_older(path, false);
    if (history.missing > 0) {
      base::warn_root(fmt::format("{} lacks the rows of {} of the {} steps before this start", path.string(),
                                  history.missing, start));
    }
    return history.lines;
  } catch (base::Error const& e) {
    base::warn_root(e.what());
    keep_older(path, false);
    return {};
  }
}

/// What is wrong with the folder; empty when nothing is.
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
    throw base::Error({.expected = "a folder for results that can be made and written",
                       .found = problem,
                       .where = fmt::format("run.output_dir = \"{}\"", folder),
                       .fix = "check its parent folders and permissions, or set run.output_dir to another folder"},
                      base::ExitCode::bad_input);
  });
}

RunFiles::RunFiles(config::Config const& config, std::int64_t start) {
  auto const& folder = config.run.output_dir;
  io::make_folder(folder);
  io::write_text_atomically(folder + "/resolved.toml", config::canonical_toml(config));
  try {
    metrics_.emplace(folder, take_over(folder + "/metrics.csv", start));
  } catch (fs::filesystem_error const& e) {
    throw base::Error({.expected = "a history (metrics.csv) that can be kept under another name",
                       .found = e.code().message(),
                       .where = folder,
                       .fix = "check the folder's permissions and the free space"});
  }
}

void RunFiles::write(io::MetricsRow const& row) {
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
  } catch (base::Error const&) {  // missing() looks again
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
