// SPDX-License-Identifier: Apache-2.0
// The history of a run (metrics.csv): writing, and three ways of reading. metrics_until() repairs what a killed run
// left, read_metrics() accepts a complete file only, and read_metrics_so_far() reads a file that a run may be writing.
// Example of a row: "10,40960,3.21,0.8,0.0003,120.5,339900.4," (the last number is empty: no evaluation in this step).
#include <p3d/io/metrics.hpp>

#include "failure.hpp"

#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace p3d::io {

std::string format(MetricsRow const& r) {
  return fmt::format("{},{},{},{},{},{},{},{}", r.step, r.tokens, r.loss, r.grad_norm, r.lr, r.step_ms, r.tokens_per_s,
                     r.eval_loss ? fmt::format("{}", *r.eval_loss) : "");
}

MetricsWriter::MetricsWriter(std::string const& output_dir, std::vector<std::string> const& lines)
    : path_(output_dir + "/metrics.csv") {
  make_folder(output_dir);
  std::string text = std::string(metrics_header) + '\n';
  for (auto const& line : lines) text += line + '\n';
  write_text_atomically(path_, text);
  FileOperation const here("open", path_);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd_ < 0) throw failure("a file that can be written", path_, last_error());
  size_ = static_cast<std::int64_t>(text.size());
}

MetricsWriter::~MetricsWriter() {
  FileOperation const here("close", path_);
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::check() const {
  FileOperation const here("stat", path_);
  struct stat mine, named;
  if (::fstat(fd_, &mine) != 0 || ::stat(path_.c_str(), &named) != 0)
    throw failure("the history that this run writes", path_, last_error());
  if (mine.st_ino != named.st_ino || mine.st_dev != named.st_dev) {
    throw base::Error({.expected = "the history that this run writes",
                       .found = "another file of this name",
                       .where = path_,
                       .fix = "give each run its own run.output_dir, and leave metrics.csv to the run"});
  }
}

void MetricsWriter::write(MetricsRow const& row) {
  auto const text = format(row) + '\n';
  check();
  FileOperation here("write", path_);
  std::size_t put = 0;
  while (put < text.size()) {
    here.next("write");
    errno = 0;
    auto const now = ::write(fd_, text.data() + put, text.size() - put);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) {
      auto const why = last_error();
      here.next("ftruncate");
      // A piece of a line that cannot be removed stays in the file; readers ignore it.
      if (put > 0 && ::ftruncate(fd_, size_) != 0) size_ += static_cast<std::int64_t>(put);
      throw failure("room for one more row of the run's history", path_, why);
    }
    put += static_cast<std::size_t>(now);
  }
  size_ += static_cast<std::int64_t>(put);
}

void MetricsWriter::flush() const {
  FileOperation const here("fsync", path_);
  while (::fsync(fd_) != 0) {
    // EINVAL: nothing to flush to, as in a pipe.
    if (errno == EINVAL) return;
    if (errno != EINTR) throw failure("a history that reaches the disk", path_, last_error());
  }
}

namespace {

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
  std::string out = "\"" + std::string(line.substr(0, most));
  for (auto& c : out) c = c < ' ' || c > '~' ? '?' : c;
  return out + (line.size() > most ? fmt::format("\"... ({} characters)", line.size()) : "\"");
}

/// Most characters of a row: longer lines are not parsed.
constexpr std::size_t longest_row = 1000;

/// The row of a line, or nothing when the line is no row.
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

MetricsHistory metrics_until(std::string const& path, std::int64_t last_step) {
  auto lines = split(read_text(path), '\n');
  if (lines.front() != metrics_header) {
    throw base::Error({.expected = metrics_header,
                       .found = "\"" + lines.front().substr(0, 100) + "\"",
                       .where = path + ":1",
                       .fix = "nothing: it stays under another name"});
  }
  MetricsHistory out;
  if (!lines.back().empty()) ++out.dropped;  // a line without an end is no row, even if it looks like one
  lines.pop_back();
  std::map<std::int64_t, std::string> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    auto const row = parse(lines[i]);
    bool const taken = row && row->step >= 1 && row->step <= last_step && rows.emplace(row->step, lines[i]).second;
    if (!taken)
      ++out.dropped;
    else if (row->step == last_step)
      out.last = row;
  }
  // A run that began with another run's checkpoint has no rows of the steps before.
  out.missing = last_step - static_cast<std::int64_t>(rows.size()) - (rows.empty() ? 0 : rows.begin()->first - 1);
  for (auto& [step, line] : rows) out.lines.push_back(std::move(line));
  return out;
}

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

MetricsSoFar read_metrics_so_far(std::string const& path) {
  auto const text = base::as_bad_input([&] { return read_text(path); });
  MetricsSoFar out;
  std::size_t number = 0;
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
      if (line != metrics_header || end == std::string::npos) refuse(metrics_header);
    } else if (end == std::string::npos) {
      out.cut_off = true;
      break;
    } else {
      auto const row = parse(line);
      if (!row) refuse("eight numbers separated by commas, the last one or nothing");
      if (!out.rows.empty() && row->step <= out.rows.back().step) refuse("a later step than that of the line before");
      out.rows.push_back(*row);
    }
    begin = end + 1;
    ++number;
  }
  return out;
}

}  // namespace p3d::io
