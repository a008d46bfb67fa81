// SPDX-License-Identifier: Apache-2.0
#pragma once
// One table says what each optimizer keeps between two updates. Checkpoints, the prediction of memory, offloading and
// the rules of the input read its rows, so that none of them asks which optimizer there is. Master weights are no part
// of it: they belong to the parameters, whatever the optimizer is.

#include <p3d/config/config.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace p3d::config {

/// An array of state, of an optimizer or of compression, which has one number for each number of each parameter, or
/// `rows` rows for each.
struct StateArray {
  char const* name;  ///< the first word of its group in a checkpoint
  char const* unit;  ///< unit of its numbers, for a loss without a unit
  /// It holds weights, in the type of master weights whatever precision.moments says.
  bool weights = false;
  /// It is no state of the optimizer but of comm.compress.
  bool compression = false;
  /// The worker to whom it belongs; -1: to none.
  int worker = -1;
  /// Above 0, the array has so many rows in place of the parameter's.
  std::int64_t rows = 0;
  /// The name of its group in a checkpoint: "first_moment", "worker_share.3".
  std::string group() const {
    std::string out(name);
    if (worker >= 0) out.append(1, '.').append(std::to_string(worker));
    return out;
  }
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

/// The arrays that comm.compress remembers. topk: the gradient as it was applied last, and each worker's share of it.
/// powersgd: the factor Q (as its rows; zeros where a parameter is not compressed), and what each worker did not send
/// yet.
inline constexpr StateArray applied_gradient{"applied_gradient", "1/parameter", false, true};
inline constexpr StateArray worker_share{"worker_share", "1/parameter", false, true};
inline constexpr StateArray low_rank_factor{"low_rank_factor", "1/parameter", false, true};
inline constexpr StateArray worker_residual{"worker_residual", "1/parameter", false, true};
/// The first of these arrays, and that of each worker, for a kind that remembers something.
inline constexpr std::pair<StateArray, StateArray> compression_kinds[] = {{applied_gradient, worker_share},
                                                                          {low_rank_factor, worker_residual}};
/// The arrays of that state for so many workers; `rows`: the rank of a factor.
inline std::vector<StateArray> compression_arrays(Compress kind, int workers, std::int64_t rows = 0) {
  if (kind != Compress::topk && kind != Compress::powersgd) return {};
  auto [first, each] = compression_kinds[kind == Compress::topk ? 0 : 1];
  if (kind == Compress::powersgd) first.rows = rows;
  std::vector<StateArray> out{first};
  for (each.worker = 0; each.worker < workers; ++each.worker) out.push_back(each);
  return out;
}

/// The row of the optimizer that the input chooses.
constexpr OptimizerState const& state_of(Optimizer const& optimizer) {
  return *std::ranges::find_if(optimizer_states, [&](OptimizerState const& row) {
    return row.type == optimizer.type && row.delay == optimizer.delay;
  });
}

/// All arrays that a checkpoint of the input's run has beside the parameters: the optimizer's, then those of
/// compression.
inline std::vector<StateArray> checkpoint_state(Config const& config) {
  auto const own = state_of(config.optimizer).arrays;
  std::vector<StateArray> out(own.begin(), own.end());
  auto const more = compression_arrays(config.comm.compress, config.comm.workers, config.comm.powersgd_rank);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace p3d::config
