// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the page of `p3d report`, each as HTML.

#include <p3d/page/run_page.hpp>

#include <string>
#include <utility>
#include <vector>

namespace p3d::page {

using Runs = std::vector<RunRecord>;

/// Names and values of quantities, not escaped; a value is "" where it is not known. Every run has the same list of
/// names.
using Facts = std::vector<std::pair<std::string, std::string>>;
/// The results of a run: state, steps, losses, speed, memory.
Facts results_of(RunRecord const& run);
/// The setting of a run: layout, sizes, data, machine and program.
Facts setting_of(RunRecord const& run);

/// The known quantities of one run as a list.
std::string list_html(Facts const& facts);
/// A table that compares results and settings of several runs; "" for one run.
std::string comparison_html(Runs const& runs);
/// A table of the input's keys in which runs differ; "" for one run.
std::string differences_html(Runs const& runs);
/// The charts of all runs.
std::string curves_html(Runs const& runs);
/// Tables of time by phase and of memory; "" where no run knows them.
std::string tables_html(Runs const& runs);
/// The pictures of recorded schedules; "" where no run has one.
std::string traces_html(Runs const& runs);
/// The inputs, programs and libraries of all runs.
std::string inputs_html(Runs const& runs);

/// The style sheet, with rules for so many runs.
std::string style(std::size_t runs);

/// A short name for each run, all different; escaped.
std::vector<std::string> labels(Runs const& runs);
/// The line and the ring with which a run is drawn, as a small picture.
std::string swatch(std::size_t run);

}  // namespace p3d::page
