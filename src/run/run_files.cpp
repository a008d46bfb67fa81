#include "run_files.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <unistd.h>
#include <vector>

namespace p3d::run {

namespace {

namespace fs = std::filesystem;

void keep_older(fs::path const& path) {
  if (!fs::exists(path)) return;
  for (int n = 1;; ++n) {
    auto const kept = path.parent_path() / fmt::format("metrics.{}.csv", n);
    if (fs::exists(kept)) continue;
    fs::rename(path, kept);
    base::log_root(fmt::format("The history of an earlier run in this folder is kept as {}", kept.string()));
    return;
  }
}

/// The rows of the steps up to `last`; none when there is no history that can be read.
std::vector<io::MetricsRow> rows_until(fs::path const& path, std::int64_t last) {
  if (!fs::exists(path)) return {};
  try {
    auto rows = io::read_metrics(path.string());
    std::erase_if(rows, [&](auto const& row) { return row.step > last; });
    return rows;
  } catch (base::Error const& e) {  // cut off in the middle of a line, for example: it stays under its new name
    base::warn_root(e.what());
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
    auto const problem = make(folder);
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
  auto const history = start > 0 ? rows_until(folder + "/metrics.csv", start) : std::vector<io::MetricsRow>{};
  keep_older(folder + "/metrics.csv");
  metrics_.emplace(folder);
  for (auto const& row : history) metrics_->write(row);
}

}  // namespace p3d::run
