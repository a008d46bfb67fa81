// SPDX-License-Identifier: Apache-2.0
// Faults as text for people.

#include <p3d/config/parse.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

namespace p3d::config {

std::string format(std::vector<Fault> const& faults) {
  if (faults.empty()) return "";
  std::string out = fmt::format("the input has {}\n", base::counted(static_cast<std::int64_t>(faults.size()), "error"));
  int number = 0;
  for (auto const& fault : faults) {
    out += fmt::format("\n{}. {}\n", ++number, fault.key.empty() ? "the input as a whole" : fault.key);
    auto const text =
        base::format({.expected = fault.expected, .found = fault.found, .where = fault.where, .fix = fault.fix});
    std::size_t begin = 0;
    while (begin <= text.size()) {
      auto const end = std::min(text.find('\n', begin), text.size());
      out += "   " + text.substr(begin, end - begin) + '\n';
      begin = end + 1;
    }
  }
  return out;
}

InputError::InputError(std::vector<Fault> const& faults)
    : base::Error(faults.empty() ? base::ErrorText{}
                                 : base::ErrorText{.expected = faults.front().expected,
                                                   .found = faults.front().found,
                                                   .where = faults.front().where,
                                                   .fix = faults.front().fix},
                  base::ExitCode::bad_input),
      all_(format(faults)) {
  while (all_.ends_with('\n')) all_.pop_back();
}

}  // namespace p3d::config
