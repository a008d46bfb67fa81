#include <p3d/base/log.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace p3d::base {

namespace {
int the_rank = 0;
int the_num_ranks = 1;

void put(std::FILE* stream, std::string const& text) {
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
  if (the_rank == 0) put(stdout, fmt::format("{}\n", line));
}

void warn_root(std::string_view line) {
  if (the_rank == 0) put(stderr, fmt::format("p3d: warning: {}\n", line));
}

void error_here(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    auto const end = text.find('\n');
    auto const line = text.substr(0, end);
    out += the_num_ranks > 1 ? fmt::format("[rank {}] {}\n", the_rank, line) : fmt::format("{}\n", line);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  put(stderr, out);
}

}  // namespace p3d::base
