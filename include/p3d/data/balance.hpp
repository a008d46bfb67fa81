// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which replica takes which microbatches of a global batch, where documents make their work unequal.

#include <cstdint>
#include <span>
#include <vector>

namespace p3d::data {

/// Scores that causal attention computes of a sample: of each document of n tokens n (n + 1) / 2, with a sliding
/// `window` (0: none) at most window for each token. `documents`: as Sampler::train fills them.
std::int64_t document_work(std::span<int const> documents, std::int64_t window = 0);

/// Deals microbatches to replicas, `work.size() / replicas` to each (must divide): the one with the most work first,
/// each to the replica that has the least so far and still has room (longest processing time first: Graham, "Bounds on
/// multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). Of equal ones the first. Returns their numbers:
/// those of replica r are the r-th part, ascending. Work is in any unit; a double, as the FLOPs of a large model's
/// microbatches have a sum beyond 2^63.
std::vector<std::int64_t> balance_microbatches(std::span<double const> work, std::int64_t replicas);

}  // namespace p3d::data
