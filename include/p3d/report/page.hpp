// SPDX-License-Identifier: Apache-2.0
#pragma once
// `p3d report`: what runs left in their folders, as one page of HTML.

#include <p3d/io/metrics.hpp>
#include <p3d/report/run_summary.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace p3d::report {

/// How tokens chose experts at a step: of its layers the most uneven one.
struct ExpertRow {
  std::int64_t step = 0;
  double busiest = 0.0;  ///< tokens of the busiest expert over the mean
  double entropy = 0.0;  ///< of the shares, over that of even ones
};

/// The output folder of a run. Only metrics.csv must be there.
struct RunRecord {
  std::string folder;
  std::string name;  ///< run.name; the folder where nothing says it
  std::vector<io::MetricsRow> rows;
  bool cut_off = false;  ///< metrics.csv ends within a row
  std::optional<RunSummary> summary;
  std::vector<std::pair<std::string, std::string>> input;  ///< resolved.toml by key: {"run.steps", "400"}
  std::string input_text;                                  ///< the file
  std::string trace_svg;
  std::vector<ExpertRow> experts;  ///< of experts.csv; empty: a dense model
  std::string last_change;         ///< of metrics.csv, UTC
  bool alive = false;              ///< a run holds the folder's lock
  std::vector<std::string> notes;  ///< what is missing or cannot be used

  /// What its summary says, but for a run that says "running" and is dead.
  std::string state() const;
};

/// Throws base::Error (bad_input): no folder, no metrics.csv, a line in it that is no row. Other files that are missing
/// or damaged are notes.
RunRecord read_run(std::string const& folder);

/// A page that needs nothing beside it, for one run or several. `now`: when it is made, as utc() gives it.
std::string to_html(std::vector<RunRecord> const& runs, std::string const& now);

}  // namespace p3d::report
