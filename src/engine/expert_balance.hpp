// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choices of experts decide three things after a step: the loads that a run reports, the biases that balance
// experts (arXiv 2408.15664), and the shares that a loss of balance over the global batch reads.

#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <map>
#include <vector>

#include "rank_memory.hpp"

namespace p3d::engine {

/// `rank` and `memory` must outlive it. A model without experts gives it nothing to do.
template <class P>
class ExpertBalance {
public:
  ExpertBalance(RankContext& rank, RankMemory<P>& memory) : rank_(&rank), memory_(&memory) {}

  /// After each step: sums the choices over the global batch. Where `updated`, biases and shares follow them.
  /// Collective.
  void follow(bool updated);
  /// The loads of the last step, as Trainer::expert_load. Collective.
  std::vector<ExpertLoad> loads();

private:
  void change_router();

  RankContext* rank_;
  RankMemory<P>* memory_;
  std::map<std::int64_t, std::vector<std::int64_t>> chosen_;  ///< tokens of the last step by expert, for each layer
};

}  // namespace p3d::engine
