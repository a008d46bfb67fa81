// SPDX-License-Identifier: Apache-2.0
#include "row_file.hpp"

#include <p3d/base/log.hpp>
#include <p3d/io/text_file.hpp>

#include <charconv>
#include <utility>

namespace p3d::run {

RowFile::RowFile(std::string path, std::int64_t start, std::string const& header,
                 std::function<bool(std::string const& line)> const& is_row)
    : path_(std::move(path)) {
  auto kept = header;
  std::ifstream in;
  if (start > 0) in.open(path_);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: a last line that was cut off
    std::int64_t step = 0;
    auto const* const last = line.data() + line.size();
    auto const [end, error] = std::from_chars(line.data(), last, step);
    bool const has_step = error == std::errc{} && end != last && *end == ',';
    if (has_step && step <= start && is_row(line)) kept += line + '\n';
  }
  io::write_text_atomically(path_, kept);
  file_.open(path_, std::ios::app);
}

void RowFile::append(std::string const& rows) {
  file_ << rows << std::flush;
  if (!file_ && !std::exchange(warned_, true))
    base::warn_root(path_ + " cannot be written; the run goes on without it");
}

}  // namespace p3d::run
