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
  /// It holds weights, in the type of master weights whatever precision.moments says.
  bool weights = false;
};
using StateArrays = std::span<StateArray const>;

/// How replicas divide the state among them (memory.shard).
enum class Ownership {
  runs,  ///< runs of elements of the flat buffers: for an update that treats every element alone
};

/// The row of an optimizer: of its rule, and of optimizer.delay.
struct OptimizerState {
  OptimizerType type;
  std::int64_t delay;
  Ownership ownership;
  StateArrays arrays;
};

/// Where gradients are late, layers read the weights before the newest, and the state has one array of weights, the
/// last. In a checkpoint it holds the older version, beside the newest one in "parameters". In memory it holds the
/// newest, as layers read the older one where the parameters lie.
inline constexpr StateArray previous_weights{"previous_weights", "1", true};
inline constexpr StateArray first_moment{"first_moment", "1/parameter"};
inline constexpr StateArray second_moment{"second_moment", "1/parameter^2"};
inline constexpr StateArray adamw_state[] = {first_moment, second_moment};
inline constexpr StateArray late_adamw_state[] = {first_moment, second_moment, previous_weights};
inline constexpr StateArray late_sgd_state[] = {previous_weights};
inline constexpr OptimizerState optimizer_states[] = {
    {OptimizerType::adamw, 0, Ownership::runs, adamw_state},
    {OptimizerType::adamw, 1, Ownership::runs, late_adamw_state},
    {OptimizerType::sgd, 0, Ownership::runs, {}},
    {OptimizerType::sgd, 1, Ownership::runs, late_sgd_state},
};

/// The row of the optimizer that the input chooses.
constexpr OptimizerState const& state_of(Optimizer const& optimizer) {
  return *std::ranges::find_if(optimizer_states, [&](OptimizerState const& row) {
    return row.type == optimizer.type && row.delay == optimizer.delay;
  });
}

}  // namespace p3d::config
