// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/metrics.hpp>

#include "failure.hpp"

#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace p3d::io {

MetricsWriter::MetricsWriter(std::string const& output_dir, std::vector<std::string> const& lines, bool predicts)
    : path_(output_dir + "/metrics.csv") {
  make_folder(output_dir);
  std::string text = std::string(predicts ? base::metrics_mtp_header : base::metrics_header) + '\n';
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

void MetricsWriter::write(base::MetricsRow const& row) {
  auto const text = base::format(row) + '\n';
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

MetricsHistory metrics_until(std::string const& path, std::int64_t last_step, bool predicts) {
  std::istringstream lines(read_text(path));
  std::string line;
  std::getline(lines, line);
  auto const* const header = predicts ? base::metrics_mtp_header : base::metrics_header;
  if (line != header) {
    throw base::Error({.expected = header,
                       .found = "\"" + line.substr(0, 100) + "\"",
                       .where = path + ":1",
                       .fix = "nothing: it stays under another name"});
  }
  MetricsHistory out;
  std::map<std::int64_t, std::string> rows;
  while (std::getline(lines, line)) {
    // A line without an end is no row, even if it looks like one.
    auto const row = lines.eof() ? std::nullopt : base::parse_metrics_row(line);
    bool const taken = row && row->mtp_loss.has_value() == predicts && row->step >= 1 && row->step <= last_step &&
                       rows.emplace(row->step, line).second;
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

}  // namespace p3d::io
