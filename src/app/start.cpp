// SPDX-License-Identifier: Apache-2.0
// The start of MPI, where a missing rank would make all others wait for ever: comm.timeout_s limits it, so the input is
// looked at before MPI is there.
#include "start.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/launch.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/config/parse.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace p3d::app {

namespace {

/// Sets the time limit of the start to comm.timeout_s, as far as it can be read already. Errors of the input are
/// reported later, by one rank.
void set_time_budget(int argc, char** argv, int ranks) {
  std::string input;
  std::vector<std::string> overrides;
  for (auto const& word : comm::command_words(argc, argv)) {
    if (word.starts_with("-")) continue;
    if (word.find('=') != std::string::npos) {
      overrides.push_back(word);
    } else if (input.empty()) {
      input = word;
    }
  }
  auto result = config::parse_file(input, overrides, ranks);
  if (!result.config) result = config::parse_file(input, overrides, 0);  // sizes may still be chosen
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
  } catch (std::exception const&) {  // the input is read again later, and its errors are reported then
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
