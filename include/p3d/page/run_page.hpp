// SPDX-License-Identifier: Apache-2.0
#pragma once
// `p3d report`: the files that runs left in their folders, as one page of HTML.

#include <p3d/base/metrics.hpp>
#include <p3d/plan/run_summary.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace p3d::page {

/// The way in which tokens chose experts at a step: its most uneven layer.
struct ExpertRow {
  std::int64_t step = 0;
  double busiest = 0.0;  ///< tokens of the busiest expert over the mean
  double entropy = 0.0;  ///< entropy of the experts' shares, over that of even shares
};

/// The contents of a run's output folder. Only metrics.csv must be there.
struct RunRecord {
  std::string folder;
  std::string name;  ///< run.name; the folder's name where no file says it
  std::vector<base::MetricsRow> rows;
  bool cut_off = false;  ///< metrics.csv ends within a row
  std::optional<plan::RunSummary> summary;
  std::vector<std::pair<std::string, std::string>> input;  ///< resolved.toml by key: {"run.steps", "400"}
  std::string input_text;                                  ///< resolved.toml as it is
  /// The contents of trace.svg, or "".
  std::string trace_svg;
  std::vector<ExpertRow> experts;  ///< rows of experts.csv; empty: a dense model
  std::string last_change;         ///< time of the last change of metrics.csv, UTC
  bool alive = false;              ///< a run holds the folder's lock
  std::vector<std::string> notes;  ///< files that are missing or cannot be used

  /// The state that the summary says. A run that says "running" but is dead is "ended without a word".
  std::string state() const;
};

/// Reads an output folder. Throws base::Error (bad_input) where there is no folder, no metrics.csv, or a line in it
/// that is no row. Other files that are missing or damaged become notes.
RunRecord read_run(std::string const& folder);

/// A page for one run or several that needs nothing beside it. `now` is the time at which it is made, as plan::utc()
/// writes it.
std::string to_html(std::vector<RunRecord> const& runs, std::string const& now);

}  // namespace p3d::page
