// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/csv.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace p3d::base {
namespace {

std::string_view without_blanks(std::string_view text) {
  auto const first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

/// Takes one cell from the front of `text`, up to its comma or line end, which stay.
std::string take_cell(std::string_view& text, std::string const& name, int& line) {
  auto const begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos || text[begin] != '"') {
    auto const end = std::min(text.find_first_of(",\n"), text.size());
    std::string cell(without_blanks(text.substr(0, end)));
    text.remove_prefix(end);
    return cell;
  }
  std::string cell;
  int const opened = line;
  text.remove_prefix(begin + 1);
  for (;; text.remove_prefix(1)) {
    if (text.empty())
      refuse("a quote that closes the cell", "the end of the text", fmt::format("{}, line {}", name, opened),
             "write quotes inside a cell twice (\"\")");
    if (text.front() == '"') {
      if (!text.substr(1).starts_with('"')) break;
      text.remove_prefix(1);
    }
    line += text.front() == '\n' ? 1 : 0;
    cell += text.front();
  }
  text.remove_prefix(1);
  auto const end = std::min(text.find_first_of(",\n"), text.size());
  if (auto const rest = without_blanks(text.substr(0, end)); !rest.empty())
    refuse("a comma or the end of the row behind a closing quote", fmt::format("\"{}\"", rest.substr(0, 40)),
           fmt::format("{}, line {}", name, line), "write quotes inside a cell twice (\"\")");
  text.remove_prefix(end);
  return cell;
}

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, std::string const& name) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  if (text.starts_with(mark)) text.remove_prefix(mark.size());
  std::vector<CsvRow> rows;
  for (int line = 1; !text.empty(); ++line) {
    auto const end = std::min(text.find('\n'), text.size());
    auto const whole = without_blanks(text.substr(0, end));
    if (whole.empty() || whole.front() == '#') {
      text.remove_prefix(std::min(end + 1, text.size()));
      continue;
    }
    CsvRow row{.line = line, .cells = {}};
    for (;;) {
      row.cells.push_back(take_cell(text, name, line));
      if (text.empty() || text.front() == '\n') break;
      text.remove_prefix(1);
    }
    if (!text.empty()) text.remove_prefix(1);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos && without_blanks(text) == text && !text.starts_with('#'))
    return std::string(text);
  std::string out = "\"";
  for (char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + '"';
}

std::string csv_row(std::vector<std::string> const& cells) {
  std::string out;
  for (auto const& cell : cells) {
    if (&cell != cells.data()) out += ',';
    out += csv_cell(cell);
  }
  return out + '\n';
}

}  // namespace p3d::base
