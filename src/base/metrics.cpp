// SPDX-License-Identifier: Apache-2.0
// Reading and writing of the rows of metrics.csv. Example of a row: "10,40960,3.21,0.8,0.0003,120.5,339900.4," (the
// last number is empty: no evaluation in this step).
#include <p3d/base/metrics.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text_file.hpp>

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

namespace p3d::base {

namespace {

/// The largest file that is read: a row takes about 100 bytes.
constexpr std::int64_t most_bytes = std::int64_t{1} << 36;

/// The pieces of a text between separators; one more than there are separators.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (std::size_t begin = 0;;) {
    auto const end = text.find(separator, begin);
    out.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

bool to_number(std::string const& cell, std::int64_t& value) {
  auto const [end, problem] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return problem == std::errc{} && end == cell.data() + cell.size();
}

bool to_number(std::string const& cell, double& value) {
  char* end = nullptr;
  value = std::strtod(cell.c_str(), &end);
  return !cell.empty() && end == cell.c_str() + cell.size();
}

/// The beginning of a line for a message, without characters that a terminal would obey.
std::string shown(std::string_view line) {
  constexpr std::size_t most = 100;
  std::string out(1, '"');
  for (char const c : line.substr(0, most)) out += c < ' ' || c > '~' ? '?' : c;
  return out + (line.size() > most ? fmt::format("\"... ({} characters)", line.size()) : "\"");
}

/// Most characters of a row: longer lines are not parsed.
constexpr std::size_t longest_row = 1000;

}  // namespace

std::string format(MetricsRow const& r) {
  return fmt::format("{},{},{},{},{},{},{},{}{}", r.step, r.tokens, r.loss, r.grad_norm, r.lr, r.step_ms,
                     r.tokens_per_s, r.eval_loss ? fmt::format("{}", *r.eval_loss) : "",
                     r.mtp_loss ? fmt::format(",{}", *r.mtp_loss) : "");
}

std::optional<MetricsRow> parse_metrics_row(std::string_view text) {
  if (text.size() > longest_row) return {};
  auto const cells = split(text, ',');
  MetricsRow r;
  bool good = (cells.size() == 8 || cells.size() == 9) && to_number(cells[0], r.step) &&
              to_number(cells[1], r.tokens) && to_number(cells[2], r.loss) && to_number(cells[3], r.grad_norm) &&
              to_number(cells[4], r.lr) && to_number(cells[5], r.step_ms) && to_number(cells[6], r.tokens_per_s);
  if (good && !cells[7].empty()) good = to_number(cells[7], r.eval_loss.emplace());
  if (good && cells.size() == 9) good = to_number(cells[8], r.mtp_loss.emplace());
  return good && r.step >= 0 && r.tokens >= 0 ? std::optional(r) : std::nullopt;
}

Metrics read_metrics(std::string const& path) {
  auto const text = read_text_file(path, "the history of a run", path, most_bytes);
  Metrics out;
  std::size_t number = 0;
  bool predicts = false;  // rows have the column of multi-token prediction
  for (std::size_t begin = 0; begin < text.size() || number == 0;) {
    auto const end = text.find('\n', begin);
    auto const line = std::string_view(text).substr(begin, end == std::string::npos ? end : end - begin);
    auto const refuse = [&](char const* expected) {
      base::refuse({.expected = expected,
                    .found = shown(line),
                    .where = fmt::format("{}:{}", path, number + 1),
                    .fix = number == 0 ? "name the folder of a run of p3d" : "remove this line"});
    };
    if (number == 0) {
      if (!is_metrics_header(line) || end == std::string::npos) refuse(metrics_header);
      predicts = line == metrics_mtp_header;
    } else if (end == std::string::npos) {
      out.cut_off = true;
      break;
    } else {
      auto const row = parse_metrics_row(line);
      if (!row || row->mtp_loss.has_value() != predicts)
        refuse(predicts ? "nine numbers separated by commas, or nothing for the last but one"
                        : "eight numbers separated by commas, the last one or nothing");
      if (!out.rows.empty() && row->step <= out.rows.back().step) refuse("a later step than that of the line before");
      out.rows.push_back(*row);
    }
    begin = end + 1;
    ++number;
  }
  return out;
}

}  // namespace p3d::base
