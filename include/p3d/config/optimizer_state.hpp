// SPDX-License-Identifier: Apache-2.0
#pragma once
// One table says what each optimizer keeps between two updates. Checkpoints, the prediction of memory, offloading and
// the rules of the input read its rows, so that none of them asks which optimizer there is. Master weights are no part
// of it: they belong to the parameters, whatever the optimizer is.

#include <p3d/config/config.hpp>

#include <algorithm>
#include <span>

namespace p3d::config {

/// An array of an optimizer's state, which has one number for each number of each parameter.
struct StateArray {
  char const* name;  ///< also the name of its group in a checkpoint
  char const* unit;  ///< unit of its numbers, for a loss without a unit
};
using StateArrays = std::span<StateArray const>;

/// How replicas divide the state among them (memory.shard).
enum class Ownership {
  runs,  ///< runs of elements of the flat buffers: for an update that treats every element alone
};

/// The row of an optimizer.
struct OptimizerState {
  OptimizerType type;
  Ownership ownership;
  StateArrays arrays;
};

inline constexpr StateArray adamw_state[] = {{"first_moment", "1/parameter"}, {"second_moment", "1/parameter^2"}};
inline constexpr OptimizerState optimizer_states[] = {
    {OptimizerType::adamw, Ownership::runs, adamw_state},
    {OptimizerType::sgd, Ownership::runs, {}},
};

/// The row of the optimizer that the input chooses.
constexpr OptimizerState const& state_of(Optimizer const& optimizer) {
  return *std::ranges::find(optimizer_states, optimizer.type, &OptimizerState::type);
}

}  // namespace p3d::config
