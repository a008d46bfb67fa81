// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of validate().

#include <p3d/schedule/schedule.hpp>

#include <cstddef>

namespace p3d::schedule {

/// The place of an action in the set of those seen of a (stage, microbatch).
constexpr unsigned bit(Op op) { return 1U << static_cast<unsigned>(op); }
static_assert(static_cast<unsigned>(Op::recv_gradient) < 8, "one byte holds the actions of a (stage, microbatch)");

constexpr std::size_t max_violations = 100;

/// Checks what can be seen without running: everything in range, every action there exactly once, on its rank.
std::vector<Violation> check_structure(Program const& program, Pass pass);

/// Follows the weights and the gradients of every stage of a program of sound structure (weights.hpp).
std::vector<Violation> check_weights(Program const& program, Pass pass);

/// Follows the slots and the order of actions through the list of each rank of a program of sound structure.
std::vector<Violation> check_order(Program const& program, Pass pass);

/// Walks the graph of a program of sound structure and order: matching of messages, and progress.
std::vector<Violation> check_progress(Program const& program, Execution execution, Pass pass);

}  // namespace p3d::schedule
