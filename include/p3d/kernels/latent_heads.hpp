// SPDX-License-Identifier: Apache-2.0
#pragma once
// Heads of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one linear of a token's latent
// gives for each head the part of its key without positions and its value, side by side. A key is that part and behind
// it a part that all heads of the token share. Keys and values go to attention, which reads them apart.
//
// Rank-local. Each element is read and written once.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The parts of a head, in elements.
struct LatentHeadShape {
  std::int64_t heads = 0;
  std::int64_t nope = 0;   ///< width of the part of a key without positions
  std::int64_t rope = 0;   ///< width of the part behind it, which all heads of a token share
  std::int64_t value = 0;  ///< width of a value
  KOKKOS_FUNCTION std::int64_t key() const { return nope + rope; }
  KOKKOS_FUNCTION std::int64_t both() const { return nope + value; }
};

/// keys [rows, heads key()] and values [rows, heads value] from `both` [rows, heads both()] and `shared` [rows, rope].
/// Each matrix keeps its own row stride.
template <class S>
void join_latent_heads(ExecSpace const& exec, LatentHeadShape const& shape, View2<S const> both, View2<S const> shared,
                       View2<S> keys, View2<S> values);

/// The transpose, of gradients: `both`, and in `shared` the sum over the heads. T is S, or Acc<S> for a sum that others
/// will be added to.
template <class S, class T = S>
void split_latent_heads(ExecSpace const& exec, LatentHeadShape const& shape, View2<S const> keys, View2<S const> values,
                        View2<S> both, Given<View2<T>> shared);

/// Copies the rotating part of each head of `queries` [rows, heads key()] behind the `latent` columns of each head of
/// `absorbed` [rows, heads (latent + rope)]: a query that meets latents has them in place of its part without
/// positions.
template <class S>
void place_rotating_parts(ExecSpace const& exec, LatentHeadShape const& shape, std::int64_t latent,
                          View2<S const> queries, View2<S> absorbed);

}  // namespace p3d::kernels
