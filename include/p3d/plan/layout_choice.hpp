// SPDX-License-Identifier: Apache-2.0
#pragma once
// parallel.layout = "auto": an input becomes one with sizes, the quickest that fit the machine of plan.cluster.

#include <p3d/config/parse.hpp>

#include <string>
#include <vector>

namespace p3d::plan {

struct PlannedInput {
  config::ParseResult result;
  std::string note;  ///< one line for people: the layout that was chosen, and its step; "" where the input has one
};

/// Does what config::parse_file() does, and chooses what the input leaves open. Keys of the layout that the input sets
/// are kept. The choice depends on the input, the cluster file and the number of ranks alone. Never throws for a bad
/// input or cluster file.
PlannedInput parse_planned_file(std::string const& path, std::vector<std::string> const& overrides, int ranks);

/// The step of the input in words, predicted for plan.cluster, beside the measured one: "Predicted 0.38 s a step (0.34
/// to 0.44): measured 0.40 s, 6 % more". "" without plan.cluster, and where it cannot be read any more.
std::string grade_step(config::Config const& config, double measured);

}  // namespace p3d::plan
