// SPDX-License-Identifier: Apache-2.0
// Errors as text for people: "1. model.heads", and below it, indented, what was expected and found, where, and a fix.

#include <p3d/config/parse.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

namespace p3d::config {

std::string format(std::vector<KeyError> const& errors) {
  if (errors.empty()) return "";
  std::string out = fmt::format("the input has {}\n", base::counted(static_cast<std::int64_t>(errors.size()), "error"));
  int number = 0;
  for (auto const& error : errors) {
    out += fmt::format("\n{}. {}\n", ++number, error.key.empty() ? "the input as a whole" : error.key);
    auto const text =
        base::format({.expected = error.expected, .found = error.found, .where = error.where, .fix = error.fix});
    std::size_t begin = 0;
    while (begin <= text.size()) {
      auto const end = std::min(text.find('\n', begin), text.size());
      out += "   " + text.substr(begin, end - begin) + '\n';
      begin = end + 1;
    }
  }
  return out;
}

InputError::InputError(std::vector<KeyError> const& errors)
    : base::Error(errors.empty() ? base::ErrorText{}
                                 : base::ErrorText{.expected = errors.front().expected,
                                                   .found = errors.front().found,
                                                   .where = errors.front().where,
                                                   .fix = errors.front().fix},
                  base::ExitCode::bad_input),
      all_(format(errors)) {
  while (all_.ends_with('\n')) all_.pop_back();
}

}  // namespace p3d::config
