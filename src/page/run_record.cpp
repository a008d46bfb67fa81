// SPDX-License-Identifier: Apache-2.0
// A run's output folder, read for the page of `p3d report`. Only metrics.csv must be there. Every other file that is
// missing or damaged becomes a note on the page, so that a run which failed has a page too.
#include <p3d/page/run_page.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <sys/stat.h>

namespace p3d::page {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_text_bytes = std::int64_t{1} << 30;
constexpr std::uintmax_t most_trace_bytes = std::uintmax_t{32} << 20U;
constexpr std::time_t dead_after_s =
    120;  ///< without a change of the lock's file, which a living run touches (io::FolderLock)

/// The time at which a file was last written; 0 where there is none.
std::time_t changed(std::string const& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 ? s.st_mtime : 0;
}

/// The keys and values of a resolved.toml, which has one in each line as config::canonical_toml writes it.
std::vector<std::pair<std::string, std::string>> keys_of(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> out;
  std::string section;
  while (!text.empty()) {
    auto const end = text.find('\n');
    auto const line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    auto const equals = line.find(" = ");
    if (line.starts_with('[') && line.ends_with(']'))
      section = std::string(line.substr(1, line.size() - 2)) + ".";
    else if (!line.starts_with('#') && equals != std::string_view::npos)
      out.emplace_back(section + std::string(line.substr(0, equals)), line.substr(equals + 3));
  }
  return out;
}

/// A basic string of TOML without its quotes; a string with escapes is left as it is written.
std::string unquoted(std::string const& value) {
  bool const plain = value.size() >= 2 && value.front() == '"' && value.find('\\') == std::string::npos;
  return plain ? value.substr(1, value.size() - 2) : value;
}

/// The text of a file that need not be there. Where it is missing, `without` says in a note what the page lacks ("": no
/// note).
std::string text_of(RunRecord& run, char const* file, std::string const& without) {
  auto const path = run.folder + "/" + file;
  std::error_code none;
  if (!fs::exists(path, none)) {
    if (!without.empty()) run.notes.push_back(fmt::format("There is no {}: {}.", file, without));
    return {};
  }
  try {
    return base::read_text_file(path, "a file of a run", path, most_text_bytes);
  } catch (base::Error const& e) {
    run.notes.push_back(fmt::format("{} is not used: {}", file, e.text().found));
    return {};
  }
}

/// The rows of an experts.csv, one for each layer of a step: "step,layer,busiest,entropy,...". Lines that are no rows
/// are left out.
std::vector<ExpertRow> experts_of(std::string const& text) {
  std::vector<ExpertRow> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ExpertRow row;
    long long step = 0, layer = 0;
    if (std::sscanf(line.c_str(), "%lld,%lld,%lf,%lf", &step, &layer, &row.busiest, &row.entropy) != 4) continue;
    row.step = step;
    if (out.empty() || out.back().step != row.step) {
      out.push_back(row);
      continue;
    }
    out.back().busiest = std::max(out.back().busiest, row.busiest);
    out.back().entropy = std::min(out.back().entropy, row.entropy);
  }
  return out;
}

}  // namespace

std::string RunRecord::state() const {
  if (summary && summary->state() != plan::RunState::running) return plan::name(summary->state());
  if (alive) return "running";
  return summary ? "ended without a word" : "not known";
}

RunRecord read_run(std::string const& folder) {
  std::error_code why;
  auto const refuse = [&](std::string const& found, std::string const& fix) {
    base::refuse(
        {.expected = "the output folder of a run, with its metrics.csv", .found = found, .where = folder, .fix = fix});
  };
  auto const status = fs::status(folder, why);
  if (!fs::exists(status)) refuse("no such folder", "name the run.output_dir of a run");
  if (!fs::is_directory(status)) refuse("a file", "name the folder that it is in");
  RunRecord run;
  run.folder = folder;
  auto const metrics = folder + "/metrics.csv";
  if (!fs::exists(metrics, why)) refuse("a folder without metrics.csv", "name the run.output_dir of a run");
  auto history = base::read_metrics(metrics);
  run.rows = std::move(history.rows);
  run.cut_off = history.cut_off;
  auto const now = std::time(nullptr), beat = changed(folder + "/.p3d.lock");
  run.last_change = plan::utc(changed(metrics));
  // A summary that says "running" is believed only while somebody holds the folder's lock: a killed run cannot correct
  // it.
  run.alive = beat != 0 && now - beat < dead_after_s;

  if (auto const json = text_of(run, "summary.json", "the curves are all that is known"); !json.empty()) {
    try {
      run.summary = plan::parse_summary(json, folder + "/summary.json");
    } catch (base::Error const& e) {
      run.notes.push_back(fmt::format("summary.json is not used: {}", e.text().found));
    }
  }
  run.input_text = text_of(run, "resolved.toml", "the input is not shown");
  run.input = keys_of(run.input_text);
  run.experts = experts_of(text_of(run, "experts.csv", ""));
  auto const trace = folder + "/trace.svg";
  if (auto const bytes = fs::file_size(trace, why); !why && bytes > most_trace_bytes)
    run.notes.push_back("trace.svg is too large for a page; it stays in the folder.");
  else
    run.trace_svg = text_of(run, "trace.svg", "");

  // The name comes from the summary, else from the input, else from the folder.
  run.name = fs::path(folder).lexically_normal().string();
  for (auto const& [key, value] : run.input) {
    if (key == "run.name") run.name = unquoted(value);
  }
  if (run.summary && !run.summary->run.empty()) run.name = run.summary->run;
  if (run.cut_off) run.notes.emplace_back("metrics.csv ends within a row, which is left out.");
  return run;
}

}  // namespace p3d::page
