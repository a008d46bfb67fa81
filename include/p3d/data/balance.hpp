// SPDX-License-Identifier: Apache-2.0
#pragma once
// Balancing of replicas: which replica takes which microbatches of a global batch, where documents make their work
// unequal.

#include <cstdint>
#include <span>
#include <vector>

namespace p3d::data {

/// The number of scores that causal attention computes for a sample: n (n + 1) / 2 for each document of n tokens; with
/// a sliding `window` (0: none) at most `window` for each token. `documents` as Sampler::train fills it.
std::int64_t document_work(std::span<int const> documents, std::int64_t window = 0);

/// Assigns microbatches to replicas, `work.size() / replicas` to each (it must divide): the one with the most work
/// first, each to the replica that has the least so far and still has room (longest processing time first: Graham,
/// "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). Among equal ones the first is taken.
/// Returns the numbers of microbatches: those of replica r are the r-th part, ascending. Work is in any unit; it is a
/// double, as the FLOPs of a large model's microbatches have a sum beyond 2^63.
std::vector<std::int64_t> balance_microbatches(std::span<double const> work, std::int64_t replicas);

}  // namespace p3d::data
