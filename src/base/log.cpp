// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/log.hpp>

#include <p3d/base/printable.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace p3d::base {

namespace {
int the_rank = 0;
int the_num_ranks = 1;
bool status_shown = false;

/// Returns to the begin of the terminal's line and clears it.
constexpr char const* erase_line = "\r\x1b[K";

/// Writes a text. A status line is erased before text on stdout, and ended before text on stderr.
void put(std::FILE* stream, std::string const& text) {
  if (status_shown) {
    std::fputs(stream == stdout ? erase_line : "\n", stdout);
    std::fflush(stdout);
    status_shown = false;
  }
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}
}  // namespace

void set_log_rank(int rank, int num_ranks) {
  the_rank = rank;
  the_num_ranks = num_ranks;
}
int log_rank() { return the_rank; }
int log_num_ranks() { return the_num_ranks; }

void log_root(std::string_view line) {
  if (the_rank == 0) put(stdout, printable(line) + "\n");
}

void status_root(std::string_view line) {
  if (the_rank != 0) return;
  status_shown = true;  // with no status line yet the line is empty, and erasing it does nothing
  put(stdout, std::string(line));
  status_shown = true;
}

void warn_root(std::string_view line) {
  if (the_rank == 0) put(stderr, fmt::format("p3d: warning: {}\n", printable(line)));
}

void error_once(std::string_view text) {
  if (the_rank == 0) put(stderr, fmt::format("p3d stops:\n{}\n", printable(text)));
}

void error_here(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    auto const end = text.find('\n');
    auto const line = printable(text.substr(0, end));
    out += the_num_ranks > 1 ? fmt::format("[rank {}] {}\n", the_rank, line) : fmt::format("{}\n", line);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  put(stderr, out);
}

}  // namespace p3d::base
