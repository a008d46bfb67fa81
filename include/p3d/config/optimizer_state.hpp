// SPDX-License-Identifier: Apache-2.0
#pragma once
// One table says what each optimizer keeps between two updates. Checkpoints, the prediction of memory, offloading and
// the rules of the input read its rows, so that none of them asks which optimizer there is. Master weights are no part
// of it: they belong to the parameters, whatever the optimizer is.

#include <p3d/config/config.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
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
  /// The number of updates by which an array of weights is older than the newest.
  int age = 0;
  /// The name of its group in a checkpoint: "first_moment", "worker_share.3", "previous_weights.2" for age 2.
  std::string group() const {
    std::string out(name);
    if (worker >= 0) out.append(1, '.').append(std::to_string(worker));
    if (age > 1) out.append(1, '.').append(std::to_string(age));
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

/// Where gradients are late by up to d updates, layers read older weights, and the state has d arrays of weights, the
/// last of the list, of ages d to 1. In a checkpoint they hold these versions, beside the newest one in "parameters".
/// In memory they hold the versions of ages d - 1 to 0, as layers read the oldest where the parameters lie.
inline constexpr StateArray previous_weights{.name = "previous_weights", .unit = "1", .weights = true, .age = 1};
inline constexpr StateArray first_moment{"first_moment", "1/parameter"};
inline constexpr StateArray second_moment{"second_moment", "1/parameter^2"};

/// The lists of an optimizer, for each number of updates by which its gradients are late.
template <std::size_t Moments>
constexpr auto late_lists(std::array<StateArray, Moments> const& moments) {
  std::array<std::array<StateArray, Moments + Optimizer::most_delay>, Optimizer::most_delay + 1> out{};
  for (std::size_t delay = 0; delay < out.size(); ++delay) {
    std::copy(moments.begin(), moments.end(), out[delay].begin());
    for (std::size_t k = 0; k < delay; ++k) {
      auto& older = out[delay][Moments + k];
      older = previous_weights;
      older.age = static_cast<int>(delay - k);
    }
  }
  return out;
}
inline constexpr auto adamw_lists = late_lists(std::array{first_moment, second_moment});
inline constexpr auto sgd_lists = late_lists(std::array<StateArray, 0>{});
/// The rows of all optimizers and delays.
inline constexpr auto optimizer_states = [] {
  std::array<OptimizerState, 2 * (Optimizer::most_delay + 1)> out{};
  for (std::size_t d = 0; d <= Optimizer::most_delay; ++d) {
    auto const delay = static_cast<std::int64_t>(d);
    out[2 * d] = {OptimizerType::adamw, delay, Ownership::runs, {adamw_lists[d].data(), 2 + d}};
    out[2 * d + 1] = {OptimizerType::sgd, delay, Ownership::runs, {sgd_lists[d].data(), d}};
  }
  return out;
}();

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

/// The row of an optimizer and its delay: that of an input is of Config::optimizer_with_versions().
constexpr OptimizerState const& state_of(Optimizer const& optimizer) {
  return *std::ranges::find_if(optimizer_states, [&](OptimizerState const& row) {
    return row.type == optimizer.type && row.delay == optimizer.delay;
  });
}

/// All arrays that a checkpoint of the input's run has beside the parameters: the optimizer's, then those of
/// compression.
inline std::vector<StateArray> checkpoint_state(Config const& config) {
  auto const own = state_of(config.optimizer_with_versions()).arrays;
  std::vector<StateArray> out(own.begin(), own.end());
  auto const more = compression_arrays(config.comm.compress, config.comm.workers, config.comm.powersgd_rank);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace p3d::config
