// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stage of this rank with all that training it needs: parameters and who hands them out, the reduction of its
// gradients, and the optimizer.

#include <p3d/comm/all_reduce.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/optim/optimizer.hpp>
#include <p3d/parallel/compression.hpp>
#include <p3d/parallel/gradients.hpp>
#include <p3d/engine/stage_port.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstddef>
#include <memory>
#include <optional>

#include "offloaded_state.hpp"
#include "rank_context.hpp"
#include "sharded_weights.hpp"

namespace p3d::engine {

template <class P>
struct StageUnit {
  comm::SharedBuffer gradients_memory;  ///< none where no other rank reads them, or they lie in a pool
  comm::SharedBuffer values_memory;     ///< none where no other rank reads them, or they lie in a pool
  model::Parameters<P> params;
  std::unique_ptr<model::WeightProvider<P>> weights;
  ShardedWeights<P>* sharded = nullptr;  ///< `weights` where replicas divide them or they are offloaded, else null
  model::Stage<P> stage;
  device::Owned1<device::bfloat16> gradient_wire;  ///< empty unless precision.reduction asks for it
  parallel::GradientReducer<typename P::Gradient> reducer;
  std::unique_ptr<parallel::GradientCompressor<typename P::Gradient>> compressor;  ///< null without comm.compress
  std::unique_ptr<optim::Optimizer<P>> optimizer;
  optim::StateMemory<P> state;                 ///< the optimizer's state, where it is resident
  std::optional<OffloadedState<P>> offloaded;  ///< empty unless the input offloads state or parameters
  /// The gradients of the step before, until their norm is known; empty unless steps follow each other without a flush.
  device::Owned1<typename P::Gradient> held_gradients;
  /// The weights that microbatches of later steps read, rounded: those of the next step, then those of the one after
  /// it, and so on. Empty where master weights need no rounding.
  std::vector<device::Owned1<typename P::Storage>> ahead_values;
  std::vector<model::StageWeights<P>> ahead;  ///< these weights as layers read them; empty without a stream
  bool reduced_before = false;                ///< in this step
  int reductions = 0;                         ///< in this step, those of no sum among them
  std::unique_ptr<StagePort> port;            ///< the stage as the executor calls it, with `weights` and `ahead`

  /// `pooled`: memory for whole weights and gradients that come and go; null: the unit has its own. `lender`: the unit
  /// whose embedding this stage reads too, or null.
  StageUnit(RankContext& rank, int number, device::Arena& arena, model::StageScratch<P> scratch,
            parallel::ReplicaGroups const& groups, ProviderFactory<P> const& provider,
            typename model::Parameters<P>::Memory pooled, StageUnit const* lender);

  /// The age of the version that microbatches read which are so many steps early.
  std::int64_t age_ahead(std::size_t steps) const;
  /// The part of held_gradients that belongs to a run.
  device::View1<typename P::Gradient> held(layout::OwnedRun const& run) const;

  /// Bytes of gradients_memory: of gradients that ranks of a node read of each other, in memory that the host reaches.
  static std::size_t shared_gradient_bytes(RankContext const& rank, int stage);
  /// Bytes of values_memory, in the same way.
  static std::size_t shared_value_bytes(RankContext const& rank, int stage);
};

}  // namespace p3d::engine
