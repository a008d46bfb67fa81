// SPDX-License-Identifier: Apache-2.0
#include "start.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/config/parse.hpp>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::app {

namespace {

constexpr std::uintmax_t longest_input = 1 << 20;

/// comm.timeout_s, which bounds the start too, as far as it can be known: what is wrong with the input is reported
/// later, by one rank.
void set_time_budget(int argc, char** argv, int ranks) {
  std::string input;
  std::vector<std::string> overrides;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (word.starts_with("-")) continue;
    if (word.find('=') != std::string_view::npos) {
      overrides.emplace_back(word);
    } else if (input.empty()) {
      input = word;
    }
  }
  std::error_code none;
  if (!input.empty() &&
      (!std::filesystem::is_regular_file(input, none) || std::filesystem::file_size(input, none) > longest_input)) {
    return;
  }
  auto const result = config::parse_file(input, overrides, ranks);
  if (!result.config) return;
  auto policy = comm::wait_policy();
  policy.timeout_s = result.config->comm.timeout_s;
  comm::set_wait_policy(policy);
}

}  // namespace

std::unique_ptr<comm::Environment> start_together(int& argc, char**& argv) {
  auto const launched = comm::launch();
  if (launched.size <= 1) return {};
  try {
    set_time_budget(argc, argv, launched.size);
  } catch (std::exception const&) {  // the input is read, and its errors are reported, later
  }
  try {
    return std::make_unique<comm::Environment>(argc, argv);
  } catch (...) {
    auto const failure = base::current_failure();
    std::cerr << "p3d stops:\n" << failure.text << std::endl;
    std::exit(static_cast<int>(failure.code));
  }
}

}  // namespace p3d::app
