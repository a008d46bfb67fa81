// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buffers of a transformer layer as views: what forward leaves for backward, and scratch. The table in
// layout/buffers.hpp says which there are, how large they are and what becomes of them.
//
// n are the rank's rows of a microbatch, N its tokens, R is MoeSizes::most_rows, G the tokens of all ranks of experts.

#include <p3d/config/config.hpp>
#include <p3d/layout/stage_buffers.hpp>
#include <p3d/kernels/routing.hpp>
#include <p3d/model/parameters.hpp>
#include <p3d/model/route_log.hpp>
#include <p3d/parallel/buffers.hpp>
#include <p3d/parallel/context.hpp>
#include <p3d/parallel/experts.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace p3d::model {

using layout::BlockSizes;
using layout::Buffer;
using layout::MoeSizes;
using layout::RankPlace;

/// A norm's output and statistics.
template <class P>
struct NormActivations {
  View2<typename P::Storage> y;         ///< [n, hidden]
  View1<typename P::Accumulate> mean;   ///< [n], layer norm only
  View1<typename P::Accumulate> scale;  ///< [n], 1 / standard deviation or 1 / root mean square
};

/// The buffers that the forward pass of routed experts leaves for backward.
///   logits, scores                 [n, experts]
///   lse, total                     [n]
///   choice, gates                  [n, top_k]
///   slots, place                   [n top_k], [n, top_k]; of the tokens of all ranks where all get all
///   balance                        [samples, experts]: see kernels::route_backward
///   x, up, row_gates               [R, hidden], [R, up], [R]: of the last pass
///   shared_gates                   [N]
template <class P>
struct MoeActivations {
  using S = typename P::Storage;
  P3D_BUFFER_VIEWS(P3D_EXPERT_BUFFERS)
  /// The plan of the exchange of rows, from forward on.
  std::shared_ptr<std::optional<layout::ExpertDispatch>> dispatch;
  std::shared_ptr<std::vector<std::int64_t>>
      gathered;  ///< the number of tokens of each rank, where all ranks get all tokens
};

/// The buffers that forward leaves for backward. The layer's input and output are the stage's.
///   norm1_y, norm2_y, mid          [n, hidden]
///   branch1, branch2               [n, hidden], with bias, where a norm follows; then their gradients
///   qkv                            [N, qkv], after norm and rotary embedding; then as attention keeps it
///   qk, qk_scale                   [N, (heads + kv_heads) head_dim], [N, norms]: kernels/qk_norm.hpp
///   latent, raw_latent             [n, latents] behind and before their norms; a split backward leaves the gradient of
///                                  raw_latent in its place, for the weight part
///   latent_scale                   [n, norms of latents]
///   heads, up, act                 [N, heads value_dim], [N, up], [N, ffn]
///   lse                            as attention keeps it
template <class P>
struct BlockActivations {
  using S = typename P::Storage;
  P3D_BUFFER_VIEWS(P3D_LAYER_BUFFERS)
  MoeActivations<P> moe;  ///< empty in a layer without experts

  NormActivations<P> norm1() const { return {norm1_y, norm1_mean, norm1_scale}; }
  NormActivations<P> norm2() const { return {norm2_y, norm2_mean, norm2_scale}; }
  /// The statistics of the norms behind the branches, whose outputs are not kept.
  NormActivations<P> post_norm1() const { return {{}, post_norm1_mean, post_norm1_scale}; }
  NormActivations<P> post_norm2() const { return {{}, post_norm2_mean, post_norm2_scale}; }
  /// Sets the view of a buffer of the layer.
  void bind(parallel::TakenMemory const& memory) {
    parallel::bind(*this, memory);
    parallel::bind(moe, memory);
    if (memory.buffer != Buffer::moe_choice) return;
    moe.dispatch = std::make_shared<std::optional<layout::ExpertDispatch>>();
    moe.gathered = std::make_shared<std::vector<std::int64_t>>();
  }
  /// Takes over the views of a set.
  void take_over(layout::BufferSet const& set, BlockActivations const& from) {
    copy(set, from);
    moe.copy(set, from.moe);
    if (!layout::has(set, Buffer::moe_choice)) return;
    moe.dispatch = from.moe.dispatch;
    moe.gathered = from.moe.gathered;
  }
};

/// Factors of the losses that balance experts, in a global batch: loss scale / samples, loss scale / tokens.
struct BalanceScales {
  double sample = 0.0, token = 0.0;
};

/// The groups with which a stage's ranks exchange inside its layers: null or empty where they do not.
struct StageExchanges {
  parallel::ContextParallel* context = nullptr;
  parallel::ExpertParallel* experts = nullptr;
  parallel::SampleRanks sample_ranks{};
};

/// Scratch of routed experts. "Own" rows are those of the rank's tokens, `received` those of other ranks' too.
///   offsets, workspace             of the order of slots
///   order, back                    [R]: the experts' order of received rows, and the way back
///   places                         [n, top_k copies]
///   own, received, returned        [n top_k, hidden], [R, hidden], [copies n top_k, hidden]; where rows travel
///   received, partial, returned    [G, hidden]; where all ranks get all tokens, choices [G, top_k], gates [G top_k]
///   rows, act, dact, dup           [R, hidden], [R, ffn], [R, ffn], [R, up]
///   d_gates, d_logits              [n, top_k], [n, experts]
///   narrow_logits, bias            [n, experts], [experts]; where weights have 16 bits, as narrow_shared
///   position, kept, counts         [n, top_k], [n, top_k], [samples, experts]
///   jittered, dx                   [n, hidden]
///   d_shared, narrow_shared        [N]
template <class P>
struct MoeScratch {
  using S = typename P::Storage;
  P3D_BUFFER_VIEWS(P3D_EXPERT_SCRATCH)
  parallel::ExpertParallel* experts = nullptr;
  parallel::SampleRanks sample_ranks;
  BalanceScales scales;
  RouteTap* routes = nullptr;  ///< for tests
};

/// Scratch that all layers of all stages of a rank share.
///   branch, dnorm, gathered        [N, hidden]; under sequence parallelism dnorm is branch, which is read by then, and
///                                  gathered the input of a column-parallel linear
///   dact, dup, dheads, dqkv        as act, up, heads and qkv
///   dlatent, gathered_latent       [N, latents]; the second one under sequence parallelism
///   kv_both                        [N, heads (nope + value)]: keys without positions and values, or their gradient
///   qk_sums                        [N, 2], where a norm of queries and keys sums over tp
template <class P>
struct BlockScratch {
  using S = typename P::Storage;
  P3D_BUFFER_VIEWS(P3D_SCRATCH_BUFFERS)
  std::shared_ptr<parallel::ContextAttention<S>> attention;
  MoeScratch<P> moe;
};

}  // namespace p3d::model
