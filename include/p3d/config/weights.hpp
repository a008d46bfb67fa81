// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights of a blend of data as whole numbers, so that the shares of its sources are kept exactly.

#include <cstdint>
#include <optional>
#include <vector>

namespace p3d::config {

/// The smallest whole numbers in the ratio of the weights, each weight taken as the shortest decimal number that stands
/// for it: 0.3 and 0.7 give 3 and 7. Nothing when their sum would be above 2^22: the blend repeats after so many
/// samples, and a run that goes on looks through one of these periods. Needs positive, finite weights.
std::optional<std::vector<std::int64_t>> whole_weights(std::vector<double> const& weights);

}  // namespace p3d::config
