// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory.limit: which keys of [memory] let a run fit into so many GiB a rank, at the least cost. Pure: before any rank.

#include <p3d/config/config.hpp>

#include <string>

namespace p3d::engine {

struct MemoryChoice {
  config::Config config;  ///< with the keys that were chosen; nothing is left to choose
  std::string note;       ///< one line for people: what was chosen, and what came next; empty without a limit
};

/// Tries what the input leaves open (Memory::free) and takes the quickest set of keys whose every rank stays within the
/// limit: by the operations of the model and of recomputation, the bytes between replicas and those to a disk, at the
/// rates of plan::MachineRates. Where nothing fits, the same with activations on a disk. Throws base::Error (bad_input)
/// with the smallest limit that would do where none fits.
MemoryChoice choose_memory(config::Config const& config);

}  // namespace p3d::engine
