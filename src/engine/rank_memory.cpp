// SPDX-License-Identifier: Apache-2.0
// Takes the memory of a rank. What other ranks of a node read (gradients, divided weights, activations with tensor
// parallelism) lies in memory that the node shares, where the host reaches it at all; its size must be known before the
// communicators are prepared. The rest follows the plan: pools, arena, units, then what is offloaded. Example: with two
// stages on this rank and memory.shard = "parameters", one pool holds the whole weights of either stage in turn.

#include "rank_memory.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/engine/backend.hpp>
#include <p3d/engine/memory_limits.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/optim/versions.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace p3d::engine {

namespace {

std::size_t arena_bytes(RankContext const& rank) {
  auto const& m = rank.plan.memory_of(rank.here.pp);
  return static_cast<std::size_t>(m.activations + m.workspace);
}

std::size_t shared_activation_bytes(RankContext const& rank) {
  bool const shared = device::host_reaches_views && rank.config.parallel.tp > 1;
  return shared ? arena_bytes(rank) + device::Arena::alignment : 0;
}

std::size_t shared_pool_bytes(plan::Pool const& pool) {
  bool const shared = device::host_reaches_views && pool.bytes > 0;
  return shared ? static_cast<std::size_t>(pool.bytes) + 2 * device::Arena::alignment : 0;
}

std::string offload_folder(config::Memory const& m) {
  if (!m.offload_dir.empty()) return m.offload_dir;
  auto const* const given = std::getenv("TMPDIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

device::SwapSettings swap_settings(config::Config const& c, std::int64_t bytes) {
  auto const folder = offload_folder(c.memory), work = "reads and writes of the swap file in " + folder;
  return {folder, bytes, c.run.file_timeout_s, [work] { comm::progress_at(work); }};
}

}  // namespace

template <class P>
RankMemory<P>::RankMemory(RankContext& rank, data::TokenSource const& source, ProviderFactory<P> const& provider)
    : rank_(&rank),
      activations_memory_(prepare_reductions(source)),
      sums_("p3d::engine::sums", 2 + static_cast<std::size_t>(rank.config.model.mtp.depth)),
      delay_(rank.config.latest_delay()),
      many_versions_(delay_ > 1 || rank.config.mixes_delays()) {
  make_replica_groups();
  comm::agree(rank.mesh.world(), "take the memory that the run needs", [&] { allocate(provider); });
}

template <class P>
comm::SharedBuffer RankMemory<P>::prepare_reductions(data::TokenSource const& source) {
  auto const& config = rank_->config;
  auto const& plan = rank_->plan;
  auto& mesh = rank_->mesh;
  require_same_input(config, source, mesh.world());
  require_room(plan.memory_of(rank_->here.pp).total(), mesh.world());
  constexpr std::size_t page = 4096;  // each buffer takes whole ones
  std::size_t const activations = shared_activation_bytes(*rank_);
  std::size_t bytes = activations + page;
  for (int s : plan.stages.stages_of(rank_->here.pp))
    bytes += StageUnit<P>::shared_gradient_bytes(*rank_, s) + StageUnit<P>::shared_value_bytes(*rank_, s) + 2 * page;
  auto const& pools = plan.pools[static_cast<std::size_t>(rank_->here.pp)];
  bytes += shared_pool_bytes(pools.weights) + shared_pool_bytes(pools.gradients) + 2 * page;
  nccl_ = choose_nccl(config, mesh.world());
  mesh.prepare(all_reduce_settings(config, nccl_), bytes, axis_names(config.comm.backend_axes));
  rank_->choose_overlap();
  weights_memory_ = comm::SharedBuffer(shared_pool_bytes(pools.weights));
  gradients_memory_ = comm::SharedBuffer(shared_pool_bytes(pools.gradients));
  return comm::SharedBuffer(activations);
}

template <class P>
void RankMemory<P>::make_replica_groups() {
  auto const& config = rank_->config;
  auto const over = static_cast<int>(config.memory.shard_over);
  if (over == 0 || over == config.parallel.dp) return;
  auto& replicas = rank_->mesh.along("dp");
  int const replica = rank_->here.dp;
  own_group_ = replicas.split(replica / over, replica, "shard-group");
  between_groups_ = replicas.split(replica % over, replica, "between-shard-groups");
  auto const settings = all_reduce_settings(config, nccl_ && config.comm.backend_axes.has(layout::Axis::dp));
  own_group_.prepare(settings);
  between_groups_.prepare(settings);
}

template <class P>
void RankMemory<P>::allocate(ProviderFactory<P> const& provider) {
  auto const& c = rank_->config;
  auto const& plan = rank_->plan;
  auto const& here = rank_->here;
  auto const& pools = plan.pools[static_cast<std::size_t>(here.pp)];
  kernels::take_workspaces();  // before the heap has holes that they would not leave for others
  // A pool begins as zeros: nobody writes the padding between parameters, and some whole weights are read before they
  // are written.
  auto const make_pool = [&](auto& pool, plan::Pool const& wanted, char const* label, void* memory) -> std::byte* {
    if (wanted.bytes == 0) return nullptr;
    pool.emplace(static_cast<std::size_t>(wanted.bytes), label, memory);
    auto const all = pool->template take<float>(wanted.bytes / static_cast<std::int64_t>(sizeof(float)));
    kernels::fill<float>(rank_->exec, all, 0.0F);
    return reinterpret_cast<std::byte*>(all.data());
  };
  auto* const whole_weights = make_pool(weights_pool_, pools.weights, "p3d::engine::weights", weights_memory_.data());
  auto* const whole_gradients =
      make_pool(gradients_pool_, pools.gradients, "p3d::engine::gradients", gradients_memory_.data());
  auto const offset = [](std::byte* memory, plan::Pool const& pool, int stage) {
    return memory == nullptr ? nullptr : static_cast<void*>(memory + pool.offsets.at(stage));
  };
  arena_.emplace(arena_bytes(*rank_), "p3d::engine::activations", activations_memory_.data());
  model::RecomputeScratch recompute;
  for (int s : plan.stages.stages_of(here.pp)) recompute.add(plan.activations[static_cast<std::size_t>(s)].recompute);
  std::vector<comm::Communicator*> sample_ranks;
  for (auto a : layout::sample_axes.list()) {
    if (c.parallel[a] > 1) sample_ranks.push_back(&rank_->mesh.along(layout::name(a)));
  }
  model::StageExchanges const exchanges{&rank_->context, &rank_->experts, parallel::SampleRanks(sample_ranks)};
  bool const with_loss = plan.stages.rank_has_head(here.pp);
  auto const mtp_losses = Kokkos::subview(sums_, Kokkos::pair<std::size_t, std::size_t>(2, sums_.size()));
  for (int k = 0; k < workspaces_of(c); ++k)
    workspaces_.emplace_back(c, recompute, with_loss, *arena_, here.tp, exchanges).set_loss(sums_, mtp_losses);
  if (!plan.stages.stages_own_vocabulary()) vocabulary_.emplace(c, here.pp, rank_->tp, *arena_, workspaces_.front());
  auto const groups = replica_groups();
  for (int s : plan.stages.stages_of(here.pp)) {
    units_[s] = std::make_unique<StageUnit<P>>(
        *rank_, s, *arena_, model::StageScratch<P>{&workspaces_.front(), &workspaces_.back()}, groups, provider,
        typename model::Parameters<P>::Memory{
            static_cast<typename P::Storage*>(offset(whole_weights, pools.weights, s)),
            static_cast<typename P::Gradient*>(offset(whole_gradients, pools.gradients, s))},
        plan.stages.shares_tied() && plan.stages.is_last(s) ? units_.at(0).get() : nullptr);
  }
  offload_state();
  offload_activations();
}

template <class P>
void RankMemory<P>::offload_state() {
  using Offloaded = OffloadedState<P>;
  using Rooms = typename ShardedWeights<P>::Rooms;
  auto const& m = rank_->config.memory;
  auto const parts = plan::offloaded_parts(rank_->config);
  if (!parts.any()) return;
  std::int64_t bytes = 0, longest = 0;
  for (auto const& [number, unit] : units_) {
    auto const owned = unit->params.shard().owned_size;
    bytes += Offloaded::file_bytes(owned, parts);
    longest = std::max(longest, owned);
  }
  staging_.emplace(parts, plan::staged_elements(longest));
  if (m.offloads_parameters() && Rooms::needed(m.divides())) rooms_.emplace(longest);
  bool const optimizer_on_disk = m.offload_optimizer == config::OffloadTo::disk;
  bool const values_on_disk = m.offload_parameters == config::OffloadTo::disk;
  if (optimizer_on_disk || values_on_disk) swap_.emplace(swap_settings(rank_->config, bytes));
  typename Offloaded::Files const files{optimizer_on_disk ? &*swap_ : nullptr, values_on_disk ? &*swap_ : nullptr};
  std::int64_t offset = 0;
  for (auto& [number, owner] : units_) {
    auto& params = owner->params;
    auto const owned = params.shard().owned_size;
    auto& state = owner->offloaded.emplace(owned, parts, files, offset);
    offset += Offloaded::file_bytes(owned, parts);
    if (parts.master)
      state.stream(
          rank_->exec, *staging_, params.shard(), {.master = true}, {.master = true},
          [&](layout::OwnedRun const& run, auto const& views) { params.draw_run(rank_->exec, run, views.master); });
    if (m.offloads_parameters()) owner->sharded->fetch_from(state, rooms_ ? &*rooms_ : nullptr);
  }
}

template <class P>
void RankMemory<P>::offload_activations() {
  auto const& config = rank_->config;
  auto const& plan = rank_->plan;
  std::int64_t bytes = 0;
  auto const file_bytes = [&](int stage) {
    return layout::offloaded_file_bytes(config, plan.stages, stage, plan.activations[static_cast<std::size_t>(stage)],
                                        parallel::element_bytes<typename P::Storage>);
  };
  for (auto const& [number, unit] : units_) bytes += file_bytes(number);
  if (bytes == 0) return;
  activation_store_.emplace(rank_->exec, swap_settings(config, bytes),
                            config.memory.offload_activations == config::OffloadTo::host);
  for (auto& [number, unit] : units_)
    if (int const places = plan.activations[static_cast<std::size_t>(number)].offload_places; places > 0)
      activation_store_->add(number, *unit->port, places, file_bytes(number));
}

template <class P>
Hooks RankMemory<P>::loading(BatchLoader& loader, SampleSource const& samples) {
  Hooks hooks;
  if (loader.sampler().varies()) hooks.length = [&loader, samples](int m) { return loader.length(samples, m); };
  hooks.load = [this, &loader, samples](int number, int slot, int microbatch) {
    auto& stage = unit(number).stage;
    auto const t = loader.load(samples, microbatch, loader.of_stage(number), stage.length(slot));
    stage.load(slot, t.rows, {t.inputs, t.targets, t.positions, t.documents, t.mtp_targets});
  };
  hooks.load_part = [this, &loader, samples](schedule::Op op, int slot, int microbatch) {
    bool const head = op == schedule::Op::head_forward;
    auto const length = loader.length(samples, microbatch);
    auto const t = loader.load(samples, microbatch, {.inputs = !head, .targets = head}, length);
    if (head) return vocabulary_->load_targets(slot, t.targets);
    if (op == schedule::Op::embed_forward) return vocabulary_->load_embedding(slot, t.inputs);
    vocabulary_->load_gradient(slot, t.inputs);
  };
  return hooks;
}

template <class P>
std::vector<double> RankMemory<P>::take_sums() {
  comm::settle();
  return kernels::take_sums(rank_->exec, sums_);
}

template <class P>
void RankMemory<P>::make_versions() {
  if (!std::exchange(one_version_, false) || delay_ == 0) return;
  updates_kept_ = 0;
  counted_update_ = -1;
  for (auto& [number, unit] : units_)
    for_pieces(*unit, [&](optim::Piece<P>& piece, auto const&) {
      Kokkos::deep_copy(rank_->exec, piece.master, piece.replaced_master);
      for (auto const& older : piece.older) Kokkos::deep_copy(rank_->exec, older, piece.replaced_master);
    });
  master_is_newer_ = true;  // a pass over offloaded weights stores values that it did not load
}

template <class P>
void RankMemory<P>::show_newest(bool newest) {
  if (delay_ == 0 || shows_newest_ == newest) return;
  shows_newest_ = newest;
  if (one_version_) return;
  for (auto& [number, unit] : units_) {
    for_pieces(*unit, [&](optim::Piece<P>& piece, auto const&) {
      kernels::exchange<typename P::Master>(rank_->exec, piece.master, piece.replaced_master);
    });
    if (unit->sharded) unit->sharded->updated();
  }
  master_is_newer_ = true;
}

template <class P>
void RankMemory<P>::pass_version(int stage) {
  if (delay_ == 0) return;
  P3D_REQUIRE(!shows_newest_, "a step reads the older version");
  updates_kept_ = 0;
  for (auto& [number, owner] : units_) {
    if (stage >= 0 && number != stage) continue;
    auto& unit = *owner;
    for_pieces(unit, [&](optim::Piece<P>& piece, device::View1<typename P::Storage> values) {
      optim::age_versions(rank_->exec, unit.params.layout(), piece);
      optim::show_versions(rank_->exec, unit.params.layout(), piece, 1);
      if (P::has_master) unit.params.round_run(rank_->exec, piece.run, piece.replaced_master, values, false, 0);
    });
    if (unit.sharded) unit.sharded->updated();
  }
}

template <class P>
void RankMemory<P>::round_ahead(std::int64_t updates) {
  if constexpr (P::has_master) {
    bool const stochastic = rank_->config.precision.stochastic_rounding;
    for (auto& [number, owner] : units_) {
      auto& unit = *owner;
      for (std::size_t k = 0; k < unit.ahead_values.size(); ++k) {
        auto const age = unit.age_ahead(k + 1);
        auto const made_by = std::max<std::int64_t>(0, updates - std::min(age, updates_kept_));
        for (auto const& run : unit.params.shard().owned) {
          Kokkos::pair<std::int64_t, std::int64_t> const place(run.begin, run.begin + run.count);
          device::View1<typename P::Storage> const values = Kokkos::subview(unit.ahead_values[k], place);
          unit.params.round_run(rank_->exec, run, unit.state.newest(run, age), values, stochastic, made_by);
        }
      }
    }
  }
}

template <class P>
void RankMemory<P>::put_gradients_aside() {
  for (auto& [number, owner] : units_) {
    auto& unit = *owner;
    auto& params = unit.params;
    Kokkos::deep_copy(rank_->exec, unit.held_gradients, params.grads());
    params.zero_grads(rank_->exec);
    for (auto const& run : params.shard().owned)
      Kokkos::deep_copy(rank_->exec, params.master(run), unit.state.newest(run));
    if constexpr (P::has_master) Kokkos::deep_copy(rank_->exec, params.values(), unit.ahead_values.front());
  }
}

template <class P>
void RankMemory<P>::refresh_weights(std::int64_t updates) {
  make_versions();
  if (!std::exchange(master_is_newer_, false)) return;
  auto const& exec = rank_->exec;
  for (auto& [number, owner] : units_) {
    // A file, or the load of experts, changes the newest weights and leaves alone what layers read.
    if (many_versions_ && !shows_newest_)
      for_pieces(*owner, [&, &layout = owner->params.layout()](optim::Piece<P>& piece, auto const&) {
        optim::show_versions(exec, layout, piece, delay_);
      });
    auto* const unit = owner.get();  // Clang before 16 captures no structured binding
    auto& params = owner->params;
    auto& offloaded = owner->offloaded;
    if (P::has_master && offloaded && offloaded->parts().values) {
      bool const with_master = offloaded->parts().master;
      offloaded->stream(exec, *staging_, params.shard(), {.master = true}, {.values = true},
                        [&](layout::OwnedRun const& run, auto const& views) {
                          round_read(*unit, run, with_master ? views.master : params.master(run), views.values,
                                     updates);
                        });
    } else if (P::has_master) {
      visit_master(*owner, false, [&](layout::OwnedRun const& run, auto const& master) {
        round_read(*unit, run, master, params.stored(run), updates);
      });
    }
    if (owner->sharded) owner->sharded->updated();
  }
}

template <class P>
void RankMemory<P>::count_version(std::int64_t update) {
  if (std::exchange(counted_update_, update) != update) updates_kept_ = std::min(delay_, updates_kept_ + 1);
}

template <class P>
void RankMemory<P>::round_read(StageUnit<P>& unit, layout::OwnedRun const& run,
                               device::View1<typename P::Master const> master,
                               device::View1<typename P::Storage> values, std::int64_t updates) const {
  auto const& params = unit.params;
  if (!rank_->config.precision.stochastic_rounding)
    return params.round_run(rank_->exec, run, master, values, false, updates);
  // Rounding at random goes by the number of the update that made the version.
  for (auto const& s : optim::delay_segments(params.layout(), run)) {
    auto const age = shows_newest_ ? 0 : std::min(s.delay, updates_kept_);
    Kokkos::pair<std::int64_t, std::int64_t> const place(s.begin, s.begin + s.count);
    params.round_run(rank_->exec, {run.begin + s.begin, s.count, run.packed + s.begin, run.copy},
                     Kokkos::subview(master, place), Kokkos::subview(values, place), true,
                     std::max<std::int64_t>(0, updates - age));
  }
}

template <class P>
plan::MemoryPrediction RankMemory<P>::in_use() const {
  auto const& predicted = rank_->plan.memory_of(rank_->here.pp);
  plan::MemoryPrediction m;
  auto const bytes = [](auto const& pool) { return pool ? static_cast<std::int64_t>(pool->high_water()) : 0; };
  m.params = bytes(weights_pool_);
  m.grads = bytes(gradients_pool_);
  for (auto const& [number, unit] : units_) {
    auto const used = unit->params.bytes();
    m.params += used.values;
    for (auto const& values : unit->ahead_values)
      m.params += static_cast<std::int64_t>(values.size() * sizeof(typename P::Storage));
    m.grads += used.grads + static_cast<std::int64_t>(unit->gradient_wire.size() * sizeof(device::bfloat16) +
                                                      unit->held_gradients.size() * sizeof(typename P::Gradient));
    if (unit->compressor) m.grads += unit->compressor->bytes();
    m.optimizer += used.master + unit->state.bytes();
  }
  m.workspace = predicted.workspace;
  m.libraries = predicted.libraries;
  m.activations = bytes(arena_) - m.workspace;
  m.staging = (staging_ ? staging_->bytes() : 0) + (rooms_ ? rooms_->bytes() : 0);
  m.offloaded = swap_ ? swap_->bytes() : 0;
  m.offloaded_activations = activation_store_ ? activation_store_->bytes() : 0;
  return m;
}

#define P3D_INSTANTIATE(P) template class RankMemory<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
