// SPDX-License-Identifier: Apache-2.0
#include "summary_file.hpp"

#include <p3d/base/log.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/report/add_to_summary.hpp>

#include <ctime>
#include <filesystem>

namespace p3d::run {

namespace {

/// The contents of an older file of this run. A file that cannot be read counts as none: the new file takes its place.
plan::RunSummary earlier(std::string const& path, std::int64_t first_step) {
  std::error_code none;
  if (first_step == 0 || !std::filesystem::exists(path, none)) return {};
  try {
    return plan::parse_summary(io::read_text(path), path);
  } catch (base::Error const& e) {
    base::warn_root(e.what());
    return {};
  }
}

}  // namespace

SummaryFile::SummaryFile(config::Config const& config, comm::Communicator& world, base::Stopwatch clock)
    : path_(config.run.output_dir + "/summary.json"), clock_(clock), root_(world.rank() == 0) {
  report::add_machine(contents_, config);
  contents_.starts = {{.started = plan::utc(std::time(nullptr)), .ranks = world.size()}};
}

void SummaryFile::begin(std::int64_t first_step) {
  if (!root_) return;
  auto const older = earlier(path_, first_step);
  if (first_step >= contents_.steps && !older.starts.empty() && older.state() == plan::RunState::finished) return;
  begun_ = true;
  contents_.reason.clear();
  auto& now = contents_.starts.back();
  now.first_step = now.last_step = first_step;
  contents_.starts.insert(contents_.starts.begin(), older.starts.begin(), older.starts.end());
  write();
}

base::ExitCode SummaryFile::keep(std::function<base::ExitCode()> const& train) {
  try {
    auto const code = train();
    end(code, code == base::ExitCode::ok ? "" : contents_.reason);
    return code;
  } catch (...) {
    auto const failure = base::current_failure();
    end(failure.code, failure.text);
    throw;
  }
}

void SummaryFile::end(base::ExitCode code, std::string const& reason) {
  if (!begun_ || !root_) return;
  auto& now = contents_.starts.back();
  now.wall_s = clock_.seconds();
  bool const stopped = code == base::ExitCode::interrupted || code == base::ExitCode::stopped_unsaved;
  now.state = code == base::ExitCode::ok ? plan::RunState::finished
              : stopped                  ? plan::RunState::stopped
                                         : plan::RunState::failed;
  contents_.exit_code = static_cast<int>(code);
  contents_.reason = reason;
  write();
}

void SummaryFile::write() const {
  try {
    io::apart([&] { io::write_text_atomically(path_, plan::to_json(contents_)); });
  } catch (base::Error const& e) {
    base::warn_root(e.what());
  }
}

}  // namespace p3d::run
