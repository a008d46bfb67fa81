// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables as comma-separated values (RFC 4180), read and written.

#include <string>
#include <string_view>
#include <vector>

namespace p3d::base {

/// One row of a table and the line of the text on which it begins, from 1.
struct CsvRow {
  int line = 0;
  std::vector<std::string> cells;
};

/// The rows of a text. Cells in double quotes may hold commas, line ends and, doubled, quotes. Blanks around an
/// unquoted cell are left out, and so are empty rows, rows that begin with '#', and a byte-order mark. Throws Error
/// (bad_input), with `name` and the line, for a quote that nothing closes.
std::vector<CsvRow> parse_csv(std::string_view text, std::string const& name);

/// A cell as it stands in a row: in quotes where it needs them.
std::string csv_cell(std::string_view text);
/// Cells as a row with its line end.
std::string csv_row(std::vector<std::string> const& cells);

}  // namespace p3d::base
