// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mean losses of a model that does not train: of the validation split, and of any stretches of tokens; and how many
// targets a mean is over.

#include <p3d/comm/mesh.hpp>
#include <p3d/config/config.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "batch_loader.hpp"

namespace p3d::engine {

/// The divisor of the sum of losses of a training step over so many targets, of which all may be masked: the step goes
/// on, with a loss of 0 and no gradient. An evaluation without targets is an error instead.
inline double divisor(std::int64_t targets) { return static_cast<double>(targets > 0 ? targets : 1); }

/// All of its functions are collective, and give the same on every rank.
class Evaluator {
public:
  /// Runs the forwards of a global batch and returns this rank's share of the sum of its losses.
  using Forward = std::function<double(SampleSource const&)>;
  /// All must outlive it.
  Evaluator(config::Config const& config, BatchLoader const& loader, comm::Mesh& mesh, Forward forward);

  /// Targets that are not masked in the global batch of which these are a replica's samples, as
  /// BatchLoader::count_targets: each replica counts its own where the data mask any.
  std::vector<std::int64_t> count_targets(SampleSource const& samples);
  /// As Trainer::evaluate. `stop` is asked before each batch, for the same answer on every rank; then the result is
  /// NaN.
  double evaluate(std::int64_t batches, std::function<bool()> const& stop);
  /// As those of Trainer.
  Score score(std::vector<layout::Range> const& parts, data::TokenSource const& source, ScoreOptions const& options);
  Score score_validation(ScoreOptions const& options);

private:
  /// Stretches of tokens whose loss is asked for, by number from 0.
  struct Windows {
    data::TokenSource const* source = nullptr;  ///< the source that errors name
    std::int64_t count = 0, length = 0;         ///< `length`: of each, in tokens, unless it varies
    std::function<void(std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents)> read;
    std::function<std::int64_t(std::int64_t number)> length_of;  ///< with batch.variable
  };
  Score score(Windows const& windows, ScoreOptions const& options);
  /// The sums over replicas.
  std::vector<std::int64_t> sum_over_replicas(std::vector<std::int64_t> counted);

  config::Config const* config_;
  BatchLoader const* loader_;
  comm::Mesh* mesh_;
  Forward forward_;
};

}  // namespace p3d::engine
