// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the page, each as HTML.

#include <p3d/report/page.hpp>

#include <string>
#include <utility>
#include <vector>

namespace p3d::report {

using Runs = std::vector<RunRecord>;

/// A quantity and its value; the same list of quantities for every run. Not escaped. "" where it is not known.
using Facts = std::vector<std::pair<std::string, std::string>>;
Facts results_of(RunRecord const& run);
/// What was run, and where.
Facts setting_of(RunRecord const& run);

/// What is known, of one run.
std::string list_html(Facts const& facts);
/// Results and settings of several runs, side by side; "" for one.
std::string comparison_html(Runs const& runs);
/// The keys of the input in which runs differ; "" for one run.
std::string differences_html(Runs const& runs);
std::string curves_html(Runs const& runs);
/// Time by phase and memory; "" where no run knows them.
std::string tables_html(Runs const& runs);
std::string traces_html(Runs const& runs);
std::string inputs_html(Runs const& runs);

/// The style sheet, and its rules for so many runs.
std::string style(std::size_t runs);

/// A short name for each run, all different; escaped.
std::vector<std::string> labels(Runs const& runs);
/// The line and the ring that a run is drawn with.
std::string swatch(std::size_t run);

}  // namespace p3d::report
