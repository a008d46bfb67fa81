// SPDX-License-Identifier: Apache-2.0
#pragma once
// The RMS norm of queries and keys: y = x rrms weight, rrms = 1 / sqrt(mean(x^2) + eps), of each head (Qwen3, arXiv
// 2505.09388, section 2), or of all heads of a token together (OLMoE, arXiv 2409.02060, section 2). Henry et al. (arXiv
// 2010.04245) normed queries and keys first, to length 1. Values are left as they are. Norms of
// the latents of latent attention are of the second kind: the numbers of a latent stand for heads of width 1.
//
// Rank-local. qkv [rows, (heads + 2 kv_heads) head_dim] holds queries, keys and values of a row one after the other,
// before [rows, (heads + kv_heads) head_dim] the queries and keys before their norm. Matrices called scale and sums are
// [rows, norms()]. Forward reads and writes each element once and stores a copy; backward reads a gradient and the copy
// twice and writes the gradient once; sums of other ranks take one more read in each. S, Acc and G are explained in
// common.hpp.

#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The norms of a row on one rank. `heads` and `kv_heads` count the heads of the rank.
struct QkNormShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool full = false;       ///< all queries of a row have one norm, and all its keys; else each head has one
  std::int64_t ranks = 1;  ///< ranks over which the heads of a row are divided
  double eps = 0.0;
  double offset = 0.0;  ///< added to each weight (NormWeight)

  /// Norms of a row: those of queries, then those of keys.
  KOKKOS_FUNCTION std::int64_t norms() const { return full ? 2 : heads + kv_heads; }
  KOKKOS_FUNCTION std::int64_t query_norms() const { return full ? 1 : heads; }
  /// Columns of the rank in norm g, and the first of them.
  KOKKOS_FUNCTION std::int64_t columns(std::int64_t g) const {
    return full ? (g == 0 ? heads : kv_heads) * head_dim : head_dim;
  }
  KOKKOS_FUNCTION std::int64_t begin(std::int64_t g) const { return full ? g * heads * head_dim : g * head_dim; }
  /// Elements that the mean of norm g is taken over, on all ranks.
  KOKKOS_FUNCTION double elements(std::int64_t g) const { return static_cast<double>(columns(g) * (full ? ranks : 1)); }
  /// True when a mean needs the sums of other ranks.
  bool sums_over_ranks() const { return full && ranks > 1; }
};

/// The weights of the norms, [columns of a norm] of the rank; or the places of their gradients.
template <class T>
struct QkNormVectors {
  View1<T> queries{}, keys{};
};

/// sums = the rank's sums of x^2, of queries and keys in qkv.
template <class S>
void qk_norm_squares(ExecSpace const& exec, QkNormShape const& shape, View2<S const> qkv, View2<Acc<S>> sums);
/// Normalises queries and keys of qkv in place; stores what was there to `before`, and rrms to `scale`. `sums`: those
/// of qk_norm_squares over all ranks; empty: the kernel computes them.
template <class S>
void qk_norm_forward(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                     View2<Acc<S> const> sums, View2<S> qkv, View2<S> before, View2<Acc<S>> scale);

/// sums = the rank's sums of dy weight x rrms, for a gradient dqkv of what forward made.
template <class S>
void qk_norm_products(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                      View2<S const> dqkv, View2<S const> before, View2<Acc<S> const> scale, View2<Acc<S>> sums);
/// Turns the gradient in dqkv into that of what `before` holds, in place. The gradients of the weights are registered
/// in `sums_over_rows`: finish() adds them. `sums`: those of qk_norm_products over all ranks; empty: the kernel
/// computes them.
template <class S, class G = Acc<S>>
void qk_norm_backward(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                      View2<Acc<S> const> sums, View2<S> dqkv, View2<S const> before, View2<Acc<S> const> scale,
                      QkNormVectors<G> const& gradients, ColumnSums<S, G>& sums_over_rows);

}  // namespace p3d::kernels
