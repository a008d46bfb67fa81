// SPDX-License-Identifier: Apache-2.0
#include "stage_unit.hpp"

#include <p3d/device/memory.hpp>
#include <p3d/device/view.hpp>

#include <utility>

#include "typed_port.hpp"

namespace p3d::engine {

namespace {

std::size_t flat_size(RankContext const& rank, int stage) {
  auto const& plan = rank.plan;
  return static_cast<std::size_t>(
      layout::StageParams(plan.table, plan.stages, stage, plan.grid.sizes(), rank.here).flat_size());
}

template <class T>
T* or_shared(T* pooled, comm::SharedBuffer const& memory) {
  return pooled != nullptr ? pooled : static_cast<T*>(memory.data());
}

}  // namespace

template <class P>
std::size_t StageUnit<P>::shared_gradient_bytes(RankContext const& rank, int stage) {
  auto const& c = rank.config;
  bool const reduced = c.parallel.product(layout::token_axes) > 1 || c.ranks_share_embedding();
  bool const pooled = c.memory.shard >= config::Shard::gradients;
  if (!device::host_reaches_views || !reduced || pooled) return 0;
  return flat_size(rank, stage) * sizeof(typename P::Gradient);
}

template <class P>
std::size_t StageUnit<P>::shared_value_bytes(RankContext const& rank, int stage) {
  auto const& memory = rank.config.memory;
  if (!device::host_reaches_views || !memory.divides() || memory.moves_weights()) return 0;
  return flat_size(rank, stage) * sizeof(typename P::Storage);
}

template <class P>
StageUnit<P>::StageUnit(RankContext& rank, int number, device::Arena& arena, model::StageScratch<P> scratch,
                        parallel::ReplicaGroups const& groups, ProviderFactory<P> const& provider,
                        typename model::Parameters<P>::Memory pooled, StageUnit const* lender)
    : gradients_memory(shared_gradient_bytes(rank, number)),
      values_memory(shared_value_bytes(rank, number)),
      params([&] {
        auto const& c = rank.config;
        layout::StageParams layout(rank.plan.table, rank.plan.stages, number, rank.plan.grid.sizes(), rank.here);
        auto shard = plan::state_shard(c, layout, rank.here);
        return model::Parameters<P>(rank.exec, std::move(layout), std::move(shard), c.memory.shard, c.run.seed,
                                    {.values = or_shared(pooled.values, values_memory),
                                     .grads = or_shared(pooled.grads, gradients_memory),
                                     .master_elsewhere = c.memory.offload_optimizer != config::OffloadTo::none,
                                     .values_elsewhere = c.memory.offloads_parameters()});
      }()),
      stage(rank.config, rank.plan.stages, number, rank.plan.activations[static_cast<std::size_t>(number)],
            params.layout(), rank.tp, arena, scratch),
      gradient_wire("p3d::engine::gradient_wire",
                    static_cast<std::size_t>(plan::reduces_narrow(rank.config) ? params.layout().flat_size() : 0)),
      reducer(
          rank.exec, params.shard(), params.grads(),
          [&rank](layout::AxisSet axes) -> comm::Communicator& { return rank.along(axes); }, gradient_wire),
      optimizer(optim::make_optimizer<P>(rank.config.optimizer_with_versions(), params.layout())),
      state(rank.config.optimizer_with_versions(), params.shard().owned_size,
            rank.config.precision.moments == config::Precision::bf16,
            rank.config.memory.offload_optimizer == config::OffloadTo::none) {
  auto const& c = rank.config;
  if (c.compresses())
    compressor = parallel::make_compressor<typename P::Gradient>(
        rank.exec, plan::stage_compression(c, params.layout()), params.layout(), params.grads(),
        [&rank](layout::AxisSet axes) -> comm::Communicator& { return rank.along(axes); }, c.run.seed);
  auto whole = model::stage_weights(c, rank.plan.stages, number, params, lender ? &lender->params : nullptr);
  if (rank.plan.stream) {
    auto const size = params.layout().flat_size();
    if (!c.mixes_delays())
      held_gradients = device::large_array<typename P::Gradient>("p3d::engine::held_gradients", size);
    auto const steps = static_cast<std::size_t>(rank.plan.stream->ahead.at(static_cast<std::size_t>(number)));
    for (std::size_t k = 1; k <= steps; ++k) {
      device::View1<typename P::Storage> values;
      if constexpr (P::has_master)
        values = ahead_values.emplace_back(device::large_array<typename P::Storage>("p3d::engine::ahead_values", size));
      else
        values = (state.arrays().end() - 1 - age_ahead(k))->wide;
      ahead.push_back(model::stage_weights(c, rank.plan.stages, number, params.with_values(values)));
    }
  }
  if (!c.memory.divides() && !c.memory.moves_weights()) {
    weights = provider(number, params, std::move(whole));
  } else {
    auto own = std::make_unique<ShardedWeights<P>>(
        rank.exec, params, std::move(whole), !c.memory.moves_weights(),
        [&rank](layout::AxisSet axes) -> comm::Communicator& { return rank.along(axes); }, groups,
        lender ? lender->sharded : nullptr);
    sharded = own.get();
    weights = std::move(own);
  }
  port = std::make_unique<TypedPort<P>>(rank.exec, stage, *weights, ahead);
}

template <class P>
std::int64_t StageUnit<P>::age_ahead(std::size_t steps) const {
  // All parameters of a stage that may be ahead are equally late.
  return params.layout().items().front().spec->delay - static_cast<std::int64_t>(steps);
}

template <class P>
device::View1<typename P::Gradient> StageUnit<P>::held(layout::OwnedRun const& run) const {
  return Kokkos::subview(device::View1<typename P::Gradient>(held_gradients),
                         Kokkos::pair<std::int64_t, std::int64_t>(run.begin, run.begin + run.count));
}

#define P3D_INSTANTIATE(P) template struct StageUnit<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
