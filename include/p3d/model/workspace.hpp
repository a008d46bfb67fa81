// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scratch of a rank's stages, heads and embeddings: what no action reads after another has run. One of them runs at
// a time, so all share it; a forward and a backward that interleave have one each.

#include <p3d/model/block.hpp>

#include <p3d/device/arena.hpp>
#include <p3d/layout/recompute.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace p3d::model {

using layout::RecomputeScratch;

/// Memory that was taken from an arena and can be divided anew.
struct MemoryPiece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  /// The memory that `take` takes from the arena.
  template <class Take>
  static MemoryPiece of(device::Arena& arena, Take const& take) {
    auto* const begin = arena.take<std::byte>(0).data();
    auto const before = arena.used();
    take();
    return {begin, arena.used() - before};
  }
  /// An arena of this memory, from which it is taken anew.
  device::Arena opened() const { return {bytes, "p3d::model::piece", data}; }
};

/// Scratch that all stages of a rank share, as only one of them runs at a time. A forward and a backward that
/// interleave have one each.
template <class P>
struct Workspace {
  using S = typename P::Storage;
  /// Takes layout::workspace_bytes from `arena`. `with_loss`: the rank holds the last stage. `config` and whom
  /// `exchanges` names must outlive the workspace.
  Workspace(config::Config const& config, RecomputeScratch const& recompute, bool with_loss, device::Arena& arena,
            int tp_rank, StageExchanges exchanges = {});
  void set_balance(BalanceScales scales) { block.moe.scales = scales; }
  void set_routes(RouteTap* routes) { block.moe.routes = routes; }
  /// Says where losses are added up: loss(0) += that of each microbatch, and in training mtp_losses(k) += that of block
  /// k of multi-token prediction. Call it before a last stage's forward.
  void set_loss(View1<double> loss, View1<double> mtp_losses = {}) {
    loss_sum = loss;
    mtp_loss_sums = mtp_losses;
  }
  /// Sets d(loss) / d(sum of token losses) of each block of multi-token prediction, and the factor of the balancing
  /// losses of their layers. Call it before a last stage's backward; with factor 0 that leaves the blocks out.
  void set_mtp(std::vector<double> loss_scales, double factor) {
    mtp_scales = std::move(loss_scales);
    mtp_factor = factor;
  }
  /// Begins an action on samples of `length` tokens, at most model.seq_len: makes the views anew, in their own memory,
  /// where the length is another. No action reads what another has left there; builds that guard memory
  /// (device/guard.hpp) make it unusable.
  void begin_action(ExecSpace const& exec, std::int64_t length);

  RankPlace rank;
  BlockScratch<P> block;
  /// dfinal [tokens, hidden], under sequence parallelism block.dnorm; row_max [tokens]; sums [2, tokens].
  P3D_BUFFER_VIEWS(P3D_LOSS_BUFFERS)
  View1<double> loss_sum, mtp_loss_sums;  ///< see set_loss()
  std::vector<double> mtp_scales;         ///< see set_mtp()
  double mtp_factor = 0.0;
  /// Memory in which forward leaves what it discards, and B remakes it, by place in the group of layers.
  std::vector<BlockActivations<P>> remade;
  std::vector<View2<S>> inputs;  ///< inputs of layers that are remade, [n, hidden] each

private:
  void take(device::Arena& arena);
  void attach();

  config::Config const* config_;
  RecomputeScratch recompute_;
  bool with_loss_;
  StageExchanges exchanges_;
  MemoryPiece memory_;
};

/// The scratch of forwards and that of backwards: the same, unless they interleave.
template <class P>
struct StageScratch {
  Workspace<P>* forward = nullptr;
  Workspace<P>* backward = nullptr;
};

}  // namespace p3d::model
