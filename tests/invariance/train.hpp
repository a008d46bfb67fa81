// SPDX-License-Identifier: Apache-2.0
#pragma once
// Short runs, and how far two of them are apart.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace p3d::test {

struct RunResult {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;  ///< of the first step
};

/// Trains `steps` steps, and checks that activations fill what was planned for them. `evaluate`: one more loss, of an
/// evaluation batch.
RunResult train(config::Config const& config, comm::Communicator const& comm, int steps, bool evaluate = false);

/// Largest relative deviations of losses, and of gradients: relative to the largest element of the tensor, or to a
/// thousandth of the largest of all.
std::pair<double, double> deviations(RunResult const& a, RunResult const& b);

}  // namespace p3d::test
