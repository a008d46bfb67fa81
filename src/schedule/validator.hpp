// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of validate().

#include <p3d/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>

namespace p3d::schedule {

/// A set of operations: those seen of a (stage, microbatch).
using OpSet = std::uint32_t;
constexpr OpSet bit(Op op) { return OpSet{1} << static_cast<unsigned>(op); }
static_assert(num_ops <= 32, "an OpSet has a bit for each operation");

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
