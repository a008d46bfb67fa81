#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <utility>

namespace p3d::base {

std::string format(ErrorText const& text) {
  std::string out;
  auto line = [&](char const* label, std::string const& value) {
    if (value.empty()) return;
    if (!out.empty()) out += '\n';
    out += fmt::format("{:<10}{}", label, value);
  };
  line("expected:", text.expected);
  line("found:", text.found);
  line("where:", text.where);
  line("fix:", text.fix);
  return out;
}

Error::Error(ErrorText text, ExitCode code) : std::runtime_error(format(text)), text_(std::move(text)), code_(code) {}

void contract_violated(char const* condition, char const* file, int line, std::string_view message) {
  throw Error({.expected = fmt::format("{} ({})", message, condition),
               .found = "the opposite",
               .where = fmt::format("{}:{}", file, line),
               .fix = "this is a defect of p3d: please report it with the input file"});
}

}  // namespace p3d::base
