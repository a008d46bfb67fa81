// SPDX-License-Identifier: Apache-2.0
#pragma once
// All memory of a rank that trains, taken once before the first step: whole weights and gradients, the arena of the
// activations, and what is offloaded. It knows where each number lies, so that nobody else asks whether it is offloaded
// or divided: visits bring it.

#include <p3d/comm/all_reduce.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/model/vocabulary.hpp>
#include <p3d/plan/memory.hpp>
#include <p3d/engine/executor.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "activation_store.hpp"
#include "batch_loader.hpp"
#include "rank_context.hpp"
#include "stage_unit.hpp"

namespace p3d::engine {

/// The stages of a rank and their memory. `rank` must outlive it.
template <class P>
class RankMemory {
public:
  /// Prepares the communicators of `rank` for the sizes of their messages, and takes the memory. Throws base::Error on
  /// every rank when ranks do not hold the same input or data, or a node has too little memory. Collective.
  RankMemory(RankContext& rank, data::TokenSource const& source, ProviderFactory<P> const& provider);
  RankMemory(RankMemory const&) = delete;
  RankMemory& operator=(RankMemory const&) = delete;

  /// The stages of this rank, by number.
  std::map<int, std::unique_ptr<StageUnit<P>>>& units() { return units_; }
  StageUnit<P>& unit(int stage) { return *units_.at(stage); }
  /// The scratch of all actions, or that of forwards and that of backwards.
  std::deque<model::Workspace<P>>& workspaces() { return workspaces_; }
  /// The rank's part of the vocabulary, where it is divided over the pipeline; else null.
  model::VocabularyPart<P>* vocabulary() { return vocabulary_ ? &*vocabulary_ : nullptr; }
  /// The store to which memory.offload_activations moves activations; null: none.
  ActivationStore* activation_store() { return activation_store_ ? &*activation_store_ : nullptr; }
  device::Arena const& arena() const { return *arena_; }
  parallel::ReplicaGroups replica_groups() {
    return own_group_.valid() ? parallel::ReplicaGroups{&own_group_, &between_groups_} : parallel::ReplicaGroups{};
  }

  /// The hooks by which forwards of these samples get their tokens.
  Hooks loading(BatchLoader& loader, SampleSource const& samples);

  /// The element to which squares of gradients are added.
  device::View1<double> squares() const { return Kokkos::subview(sums_, Kokkos::pair<int, int>(1, 2)); }
  /// The sums of a program on this rank, which become zero: of losses, of squares of gradients, and of the losses of
  /// each block of multi-token prediction.
  std::vector<double> take_sums();

  /// Calls visit(run, master weights) for all that a stage's unit owns: those of the newest version.
  template <class Visit>
  void for_master(StageUnit<P>& unit, Visit const& visit) {
    visit_master(unit, delay_ > 0 && !layers_read_newest(), visit);
  }
  /// Calls visit(piece, values) for all that a stage's unit owns, to be updated: the piece has its master weights,
  /// state and gradients; `values` are what layers read, empty where these are master weights. Where gradients are late
  /// and a step reads the older version, the piece's master weights are the newest, and its replaced_master the older.
  template <class Visit>
  void for_pieces(StageUnit<P>& unit, Visit const& given) {
    auto const visit = [&](optim::Piece<P>& piece, device::View1<typename P::Storage> values) {
      if (delay_ > 0) optim::aim_at_newest(piece, delay_);
      given(piece, values);
    };
    auto& params = unit.params;
    auto const& shard = params.shard();
    if (!unit.offloaded) {
      for (auto const& run : shard.owned) {
        optim::Piece<P> piece{run, params.master(run), params.reduced(run)};
        unit.state.bind(piece);
        visit(piece, P::has_master ? params.stored(run) : device::View1<typename P::Storage>());
      }
      return;
    }
    auto const offloaded = unit.offloaded->parts();
    unit.offloaded->stream(
        rank_->exec, *staging_, shard, {.master = true, .arrays = every_array},
        {.master = true, .arrays = every_array, .values = true}, [&](layout::OwnedRun const& run, auto const& views) {
          optim::Piece<P> piece{run, offloaded.master ? views.master : params.master(run), params.reduced(run)};
          if (offloaded.arrays > 0)
            piece.state = views.state;
          else
            unit.state.bind(piece);
          device::View1<typename P::Storage> values;
          if constexpr (P::has_master) values = offloaded.values ? views.values : params.stored(run);
          visit(piece, values);
        });
  }

  // Where gradients are late (optimizer.delay), there are several versions of the weights, of which layers read an
  // older one in a step, and the newest one for everything else.

  /// Has layers read the newest version, or the one before. refresh_weights() must follow.
  void show_newest(bool newest);
  bool layers_read_newest() const { return shows_newest_ || one_version_; }
  /// Whether there are more than two versions, or layers read versions of several ages.
  bool has_many_versions() const { return many_versions_; }
  /// An update was skipped: the versions of a stage's weights (-1: of all) grow older, the newest stays.
  void pass_version(int stage);
  /// Rounds the newer versions for the microbatches of a stream's later steps, which read them while others read the
  /// older one. `updates`: those that have made the newest.
  void round_ahead(std::int64_t updates);
  /// Ends a step of a stream: gradients move to where they wait for their update, and the newest version overwrites the
  /// older one.
  void put_gradients_aside();
  /// There is one version of the weights, where layers read: at the start, and where a file brought one.
  void set_one_version() { one_version_ = true; }
  /// The versions are those of so many updates: a file brought all.
  void set_all_versions() {
    updates_kept_ = delay_;
    counted_update_ = -1;
  }
  /// The updates that made the versions, one each, where rounding at random needs their number and it is less than that
  /// of the versions; else -1.
  std::int64_t versions_made() const {
    bool const all = one_version_ || updates_kept_ >= delay_;
    return all || !rank_->config.precision.stochastic_rounding ? -1 : updates_kept_;
  }
  /// Sets what versions_made() was when a file was written that brought all versions.
  void set_versions_made(std::int64_t updates) {
    if (!one_version_) updates_kept_ = updates < 0 ? delay_ : std::min(delay_, updates);
  }
  /// This update makes a version, of one stage or more: the updates that made the others are those before it.
  void count_version(std::int64_t update);
  /// Rounds the weights of a run that layers read in a step. `updates`: those that have made the newest.
  void round_read(StageUnit<P>& unit, layout::OwnedRun const& run, device::View1<typename P::Master const> master,
                  device::View1<typename P::Storage> values, std::int64_t updates) const;

  /// The master weights were changed by more than an update: layers must not read the old ones.
  void master_changed() { master_is_newer_ = true; }
  bool master_is_newer() const { return master_is_newer_; }
  /// Rounds what layers read from the master weights, where these are newer. `updates`: those done so far.
  void refresh_weights(std::int64_t updates);
  /// Copies the one version of the weights that there is to where the others are kept.
  void make_versions();

  /// The bytes that are allocated, by the purposes of the prediction; activations and workspace at their highest.
  plan::MemoryPrediction in_use() const;

private:
  static constexpr std::size_t every_array = std::numeric_limits<std::size_t>::max();

  /// Calls visit(run, master weights) for the version that the last array of the state holds, or the one that layers
  /// read.
  template <class Visit>
  void visit_master(StageUnit<P>& unit, bool in_state, Visit const& visit) {
    auto const& shard = unit.params.shard();
    auto const parts = unit.offloaded ? unit.offloaded->parts() : StateParts{};
    if (in_state ? parts.arrays > 0 : parts.master) {
      unit.offloaded->stream(rank_->exec, *staging_, shard, {.master = !in_state, .arrays = in_state ? every_array : 0},
                             {}, [&](layout::OwnedRun const& run, auto const& views) {
                               visit(run, in_state ? views.state.back().wide : views.master);
                             });
    } else {
      for (auto const& run : shard.owned) visit(run, in_state ? unit.state.newest(run) : unit.params.master(run));
    }
  }

  /// Makes the ways of reduction ready; returns the memory for the activations that are reduced. Collective.
  comm::SharedBuffer prepare_reductions(data::TokenSource const& source);
  /// Makes the communicators of hybrid sharding, where memory.shard_over asks for it. Collective.
  void make_replica_groups();
  /// Takes this rank's memory. Local.
  void allocate(ProviderFactory<P> const& provider);
  /// Takes the room for what memory.offload_optimizer and offload_parameters move, and moves it there.
  void offload_state();
  /// Takes the room for memory.offload_activations.
  void offload_activations();

  RankContext* rank_;
  bool nccl_ = false;                                     ///< comm.backend, along comm.backend_axes
  comm::SharedBuffer weights_memory_, gradients_memory_;  ///< memory of the pools, where a node shares it
  comm::SharedBuffer activations_memory_;                 ///< none without tensor parallelism
  comm::Communicator own_group_, between_groups_;         ///< of replicas, with hybrid sharding
  std::optional<device::Arena> weights_pool_, gradients_pool_;
  std::optional<device::SwapFile> swap_;
  std::optional<typename OffloadedState<P>::Staging> staging_;
  std::optional<typename ShardedWeights<P>::Rooms> rooms_;
  device::Owned1<double> sums_;  ///< see take_sums()
  std::optional<device::Arena> arena_;
  std::deque<model::Workspace<P>> workspaces_;
  std::optional<model::VocabularyPart<P>> vocabulary_;
  std::map<int, std::unique_ptr<StageUnit<P>>> units_;
  std::optional<ActivationStore> activation_store_;
  bool master_is_newer_ = true;  ///< than what layers read: at the start, and after a checkpoint was copied in
  std::int64_t delay_;           ///< updates by which gradients are late, the largest number
  bool many_versions_;           ///< see has_many_versions()
  bool shows_newest_ = false, one_version_ = true;
  /// Updates that were made since all versions were equal, at most delay_: a version of age a is that of the update a
  /// updates ago, or of the first of these.
  std::int64_t updates_kept_ = 0;
  std::int64_t counted_update_ = -1;  ///< see count_version()
};

}  // namespace p3d::engine
