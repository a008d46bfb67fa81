// SPDX-License-Identifier: Apache-2.0
// Reads measured runs. A row is an input of p3d: its cells become overrides ("parallel.tp=8") of an empty file, so all
// rules of inputs hold, and a row that p3d could not run is refused with the line.
#include <p3d/plan/measured_rows.hpp>

#include <p3d/base/csv.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/plan/model_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

namespace p3d::plan {
namespace {

/// The recomputation that Korthikanti et al. (arXiv 2205.05198) call selective, as p3d writes it.
constexpr char const* selective = "[\"attention\"]";

bool is_key(std::string const& column) { return column.find('.') != std::string::npos; }

/// The column of that name, or -1.
std::ptrdiff_t column_of(std::vector<std::string> const& header, std::string_view name) {
  auto const found = std::find(header.begin(), header.end(), name);
  return found == header.end() ? -1 : found - header.begin();
}

void require_columns(std::vector<std::string> const& header, std::string const& name) {
  std::vector<std::string> known;
  for (auto const& k : config::key_help()) known.push_back(k.key);
  auto const where = fmt::format("{}, the header", name);
  for (auto const& column : header) {
    if (std::count(header.begin(), header.end(), column) > 1)
      base::refuse("every column once", fmt::format("\"{}\" twice", column), where, "remove one of them");
    if (!is_key(column) || std::find(known.begin(), known.end(), column) != known.end()) continue;
    auto const close = base::nearest(column, known);
    base::refuse("keys of the input, and columns without a dot", fmt::format("\"{}\"", column), where,
                 close.empty() ? "p3d --help-input lists all keys" : fmt::format("did you mean {}?", close));
  }
  if ((column_of(header, "measured_s") < 0) == (column_of(header, "measured_bytes") < 0))
    base::refuse("a column measured_s or measured_bytes, one of them", base::join(header), where,
                 "add the column with the seconds of a step, or with the bytes of the rank that has most");
  for (char const* column : {"id", "cluster"})
    if (column_of(header, column) < 0)
      base::refuse("columns id and cluster", base::join(header), where, fmt::format("add the column {}", column));
}

double positive_number(std::string const& cell, std::string const& where) {
  char* end = nullptr;
  double const value = std::strtod(cell.c_str(), &end);
  if (cell.empty() || *end != '\0' || !std::isfinite(value) || value <= 0)
    base::refuse("a number above 0", fmt::format("\"{}\"", cell), where, "write it like 3.57, or leave the row out");
  return value;
}

/// The input that a row means. Data and files play no part in it.
config::Config config_of(std::vector<std::string> const& header, std::vector<std::string> const& cells,
                         std::string const& where) {
  // Other trainers have neighbouring replicas next to each other, and stages far apart.
  std::vector<std::string> overrides{"data.format=\"synthetic\"", "parallel.order=tp-cp-dp-pp"};
  for (std::size_t c = 0; c < header.size(); ++c)
    if (is_key(header[c]) && !cells[c].empty())
      overrides.push_back(header[c] + "=" + (cells[c] == "selective" ? selective : cells[c]));
  auto result = config::parse_text("", where, "/", overrides, 0);
  if (result.config) return std::move(*result.config);
  auto const& e = result.errors.front();
  base::refuse(e.expected, e.found, fmt::format("{} ({})", where, e.where), e.fix);
}

}  // namespace

MeasuredRows read_measured_rows(std::string_view text, std::string const& name) {
  auto const table = base::parse_csv(text, name);
  if (table.empty()) base::refuse("a table with a header", "no row", name, "the first row names the columns");
  MeasuredRows out{.header = table.front().cells, .rows = {}};
  require_columns(out.header, name);
  auto const cell = [&](std::vector<std::string> const& cells, char const* column) {
    auto const at = column_of(out.header, column);
    return at < 0 ? std::string() : cells[static_cast<std::size_t>(at)];
  };
  bool const bytes = column_of(out.header, "measured_bytes") >= 0;
  char const* const measured = bytes ? "measured_bytes" : "measured_s";
  for (auto const& row : std::span(table).subspan(1)) {
    auto const where = fmt::format("{}, line {}", name, row.line);
    if (row.cells.size() != out.header.size())
      base::refuse(base::counted(static_cast<std::int64_t>(out.header.size()), "cell") + ", one for each column",
                   base::counted(static_cast<std::int64_t>(row.cells.size()), "cell"), where,
                   "an empty cell still has its comma");
    auto group = cell(row.cells, "group");
    out.rows.push_back({.line = row.line,
                        .id = cell(row.cells, "id"),
                        .group = group.empty() ? "all" : std::move(group),
                        .cluster = cell(row.cells, "cluster"),
                        .kernels = cell(row.cells, "kernels"),
                        .split = cell(row.cells, "split"),
                        .config = config_of(out.header, row.cells, where),
                        .measured = positive_number(cell(row.cells, measured), fmt::format("{}, {}", where, measured)),
                        .bytes = bytes,
                        .cells = row.cells});
  }
  return out;
}

std::string problem_of(MeasuredRow const& row) {
  auto const& m = row.config.model;
  auto const parameters = layout::make_param_table(row.config).num_parameters();
  return fmt::format("{} ({} x {}, {} tokens), {}, batch {}, {}, {}{}{}",
                     base::human_count(static_cast<double>(parameters)), m.layers, m.hidden, m.seq_len,
                     base::counted(row.config.num_ranks(), "rank"), row.config.batch.global,
                     to_string(row.config.run.precision), row.cluster, row.kernels.empty() ? "" : ", ", row.kernels);
}

}  // namespace p3d::plan
