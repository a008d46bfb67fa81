// SPDX-License-Identifier: Apache-2.0
// Tables with bars: time by phase, memory by purpose. A table has a row for each phase or purpose and a column for each
// run; the bars of a table share one scale.

#include "run_page_parts.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::page {

namespace {

/// One cell of a table.
struct Cell {
  double share = -1.0;  ///< share of the bar's full length; below 0: no bar
  std::string text;     ///< "" for none
};
/// One row of a table.
struct BarRow {
  std::string name;
  std::vector<Cell> cells;  ///< one for each run
};

/// A bar in a run's colour; "" for a share that nobody would see.
std::string bar(double share, std::size_t run) {
  if (!(share > 0.005)) return "";
  return fmt::format(
      "<svg class=\"bar r{}\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
      "<rect width=\"{:.2f}\" height=\"8\"/></svg>",
      run, 100.0 * std::min(1.0, share));
}

/// A table of rows with bars, with a head that names the runs where there are several.
std::string table(Runs const& runs, std::vector<BarRow> const& rows) {
  // All columns have one width, so that bars can be compared.
  auto out =
      fmt::format("<div class=\"scroll\"><table class=\"bars\" style=\"min-width:{}px\">\n", 150 + 135 * runs.size());
  if (runs.size() > 1) {
    out += "<thead><tr><th></th>";
    auto const names = labels(runs);
    for (std::size_t r = 0; r < runs.size(); ++r) out += fmt::format("<th>{}{}</th>", swatch(r), names[r]);
    out += "</tr></thead>\n";
  }
  out += "<tbody>\n";
  for (auto const& row : rows) {
    out += fmt::format("<tr><th>{}</th>", base::markup_text(row.name));
    for (std::size_t r = 0; r < row.cells.size(); ++r)
      out += fmt::format("<td>{}{}</td>", bar(row.cells[r].share, r),
                         row.cells[r].text.empty() ? "&ndash;" : base::markup_text(row.cells[r].text));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

/// A panel with a title.
std::string panel(char const* title, std::string const& content, std::size_t runs) {
  return fmt::format("<div class=\"panel{}\"><h3>{}</h3>\n{}</div>\n", runs > 2 ? " row" : "", title, content);
}

/// The prediction of the pipeline coordinate with the most memory; null where it is not known.
plan::MemoryPrediction const* largest_rank(RunRecord const& run) {
  if (!run.summary || run.summary->memory_of_ranks.empty()) return nullptr;
  auto const& all = run.summary->memory_of_ranks;
  return &*std::max_element(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.total() < b.total(); });
}

/// The table of seconds by phase; "" where no run knows them.
std::string phases_html(Runs const& runs) {
  std::vector<BarRow> rows;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].summary) continue;
    double total = 0.0;
    for (auto const& p : runs[r].summary->phases) total += p.mean;
    for (auto const& p : runs[r].summary->phases) {
      // Runs may know different phases; a row is made at its first appearance.
      auto row = std::find_if(rows.begin(), rows.end(), [&](auto const& known) { return known.name == p.name; });
      if (row == rows.end()) row = rows.insert(rows.end(), {p.name, std::vector<Cell>(runs.size())});
      double const share = total > 0.0 ? p.mean / total : 0.0;
      auto& cell = row->cells[r];
      cell.share = share;
      cell.text = fmt::format("{:.1f} %: {:.3g} s", 100.0 * share, p.mean);
      if (p.max - p.min >= 5e-4) cell.text += fmt::format(" ({:.3g} to {:.3g})", p.min, p.max);
    }
  }
  std::erase_if(rows, [](BarRow const& row) {
    return std::all_of(row.cells.begin(), row.cells.end(), [](Cell const& c) { return c.share <= 0.0; });
  });
  if (rows.empty()) return "";
  return panel("Time by phase",
               "<p>Seconds of the last start: mean (least to most) over the ranks.</p>" + table(runs, rows),
               runs.size());
}

/// The table of bytes of all ranks in all; "" where no run knows them.
std::string all_ranks(Runs const& runs) {
  double most = 0.0;
  for (auto const& run : runs) {
    if (run.summary) most = std::max({most, run.summary->memory_predicted, run.summary->memory_found});
  }
  BarRow predicted{"predicted", std::vector<Cell>(runs.size())}, found{"found", predicted.cells},
      ratio{"found / predicted", predicted.cells};
  bool measured = false;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].summary || runs[r].summary->memory_predicted <= 0) continue;
    auto const& s = *runs[r].summary;
    predicted.cells[r] = {s.memory_predicted / most, base::human_bytes(s.memory_predicted)};
    if (s.memory_found <= 0) continue;
    found.cells[r] = {s.memory_found / most, base::human_bytes(s.memory_found)};
    ratio.cells[r].text = fmt::format("{:.3f}", s.memory_found / s.memory_predicted);
    measured = true;
  }
  if (most <= 0.0) return "";
  std::vector<BarRow> rows{std::move(predicted)};
  if (measured) rows.insert(rows.end(), {std::move(found), std::move(ratio)});
  return "<p>All ranks, predicted, and found at the end (there with what MPI and BLAS take while they work).</p>" +
         table(runs, rows);
}

/// The table of bytes by purpose; "" where no run knows them.
std::string memory_html(Runs const& runs) {
  using Bytes = std::int64_t plan::MemoryPrediction::*;
  struct Purpose {
    char const* name;
    Bytes bytes;
  };
  constexpr Purpose purposes[]{{"weights", &plan::MemoryPrediction::params},
                               {"gradients", &plan::MemoryPrediction::grads},
                               {"optimizer", &plan::MemoryPrediction::optimizer},
                               {"activations", &plan::MemoryPrediction::activations},
                               {"workspace", &plan::MemoryPrediction::workspace},
                               {"panels of 16-bit GEMMs", &plan::MemoryPrediction::panels},
                               {"staging of offloaded state", &plan::MemoryPrediction::staging},
                               {"libraries (on GPUs with context)", &plan::MemoryPrediction::libraries},
                               {"offloaded (beside)", &plan::MemoryPrediction::offloaded},
                               {"offloaded activations (beside)", &plan::MemoryPrediction::offloaded_activations},
                               {"copy of a checkpoint (beside)", &plan::MemoryPrediction::checkpoint_copy}};
  double most = 0.0;
  for (auto const& run : runs) {
    if (auto const* m = largest_rank(run)) most = std::max(most, static_cast<double>(m->total()));
  }
  if (most == 0.0) return "";
  std::vector<BarRow> rows;
  auto const add = [&](char const* name, auto&& bytes_of) {
    BarRow row{name, std::vector<Cell>(runs.size())};
    bool any = false;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      auto const* m = largest_rank(runs[r]);
      if (m == nullptr) continue;
      auto const bytes = static_cast<double>(bytes_of(*m));
      row.cells[r] = {bytes / most, base::human_bytes(bytes)};
      any = any || bytes > 0;
    }
    if (any) rows.push_back(std::move(row));
  };
  for (auto const& p : purposes) add(p.name, [&](plan::MemoryPrediction const& m) { return m.*p.bytes; });
  add("all but what is beside", [](plan::MemoryPrediction const& m) { return m.total(); });
  return panel("Memory", "<p>The largest rank, predicted.</p>" + table(runs, rows) + all_ranks(runs), runs.size());
}

}  // namespace

std::string tables_html(Runs const& runs) {
  auto const panels = phases_html(runs) + memory_html(runs);
  if (panels.empty()) return "";
  return "<section id=\"costs\"><h2>Time and memory</h2><div class=\"panels pair\">\n" + panels + "</div></section>\n";
}

}  // namespace p3d::page
