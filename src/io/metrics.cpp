#include <p3d/io/metrics.hpp>

#include "failure.hpp"

#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace p3d::io {

std::string format(MetricsRow const& r) {
  return fmt::format("{},{},{},{},{},{},{},{}", r.step, r.tokens, r.loss, r.grad_norm, r.lr, r.step_ms, r.tokens_per_s,
                     r.eval_loss ? fmt::format("{}", *r.eval_loss) : "");
}

MetricsWriter::MetricsWriter(std::string const& output_dir)
    : path_(output_dir + "/metrics.csv"), file_(nullptr, &std::fclose) {
  make_folder(output_dir);
  errno = 0;
  file_.reset(std::fopen(path_.c_str(), "w"));
  if (!file_) throw failure("a file that can be written", path_, last_error());
  line(metrics_header);
}

void MetricsWriter::write(MetricsRow const& row) { line(format(row)); }

void MetricsWriter::line(std::string const& text) {
  errno = 0;
  if (std::fputs((text + '\n').c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) {
    throw failure("room for one more row of the run's history", path_, last_error());
  }
}

namespace {

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

/// For a message: the beginning of a line, without what a terminal would obey.
std::string shown(std::string_view line) {
  constexpr std::size_t most = 100;
  std::string out = "\"" + std::string(line.substr(0, most));
  for (auto& c : out) c = c < ' ' || c > '~' ? '?' : c;
  return out + (line.size() > most ? fmt::format("\"... ({} characters)", line.size()) : "\"");
}

/// No row is longer: longer lines are not taken apart.
constexpr std::size_t longest_row = 1000;

std::optional<MetricsRow> parse(std::string_view text) {
  if (text.size() > longest_row) return {};
  auto const cells = split(text, ',');
  MetricsRow r;
  bool good = cells.size() == 8 && to_number(cells[0], r.step) && to_number(cells[1], r.tokens) &&
              to_number(cells[2], r.loss) && to_number(cells[3], r.grad_norm) && to_number(cells[4], r.lr) &&
              to_number(cells[5], r.step_ms) && to_number(cells[6], r.tokens_per_s);
  if (good && !cells[7].empty()) good = to_number(cells[7], r.eval_loss.emplace());
  return good && r.step >= 0 && r.tokens >= 0 ? std::optional(r) : std::nullopt;
}

}  // namespace

std::vector<MetricsRow> read_metrics(std::string const& path) {
  auto const lines = split(read_text(path), '\n');
  auto wrong = [&](std::size_t line, std::string expected) {
    return base::Error({.expected = std::move(expected),
                        .found = line < lines.size() ? shown(lines[line]) : "the end of the file",
                        .where = fmt::format("{}:{}", path, line + 1),
                        .fix = "name a metrics.csv that p3d has written; remove a last line that was cut off"});
  };
  if (lines.front() != metrics_header) throw wrong(0, metrics_header);
  std::vector<MetricsRow> out;
  for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
    auto const row = parse(lines[i]);
    if (!row) throw wrong(i, "eight numbers separated by commas, the last one or nothing");
    out.push_back(*row);
  }
  if (!lines.back().empty() || lines.size() < 2) throw wrong(lines.size() - 1, "an end of line after the last row");
  return out;
}

}  // namespace p3d::io
