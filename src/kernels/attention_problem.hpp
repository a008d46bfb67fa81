// SPDX-License-Identifier: Apache-2.0
#pragma once
// What both forms of attention share: where one head of one sample lies in the matrices, and its dropout factors.

#include <p3d/base/error.hpp>
#include <p3d/kernels/attention.hpp>

#include "attention_tile.hpp"

namespace p3d::kernels {

/// Where one head of one sample lies, and the parts of the description that every kernel needs.
template <class S>
struct Problem {
  using A = Acc<S>;
  /// Whether results add up beside the matrix that they are stored in, which keeps them in 16 bits.
  static constexpr bool narrow = !std::is_same_v<S, A>;
  AttentionShape shape;
  Dropout dropout;
  StridedMatrix<S const> qkv;
  std::int64_t tiles;  ///< along the sequence

  Problem(AttentionShape const& s, Dropout const& d, View2<S const> m)
      : shape(s),
        dropout(d),
        qkv{m.data(), static_cast<std::int64_t>(m.stride(0))},
        tiles((s.rows.seq_len + tile - 1) / tile) {
    P3D_REQUIRE(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "kv_heads must divide heads");
    P3D_REQUIRE(static_cast<std::int64_t>(m.extent(0)) == s.rows.rows() &&
                    static_cast<std::int64_t>(m.extent(1)) == (s.heads + 2 * s.kv_heads) * s.head_dim,
                "qkv must be [rows, (heads + 2 kv_heads) head_dim]");
  }

  /// The [positions, head_dim] block from `position` on of the column group `head` (queries, then keys, then values).
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> block(StridedMatrix<U> m, std::int64_t sample, std::int64_t position,
                                                std::int64_t head) const {
    return {m.row(sample * shape.rows.seq_len + position) + head * shape.head_dim, m.stride};
  }
  KOKKOS_INLINE_FUNCTION std::int64_t key_head(std::int64_t kv) const { return shape.heads + kv; }
  KOKKOS_INLINE_FUNCTION std::int64_t value_head(std::int64_t kv) const { return shape.heads + shape.kv_heads + kv; }
  KOKKOS_INLINE_FUNCTION std::int64_t kv_of(std::int64_t head) const { return head / (shape.heads / shape.kv_heads); }
  KOKKOS_INLINE_FUNCTION int count(std::int64_t position) const {  ///< positions in the tile that starts here
    return static_cast<int>(shape.rows.seq_len - position < tile ? shape.rows.seq_len - position : tile);
  }
  KOKKOS_INLINE_FUNCTION std::int64_t lse_at(std::int64_t sample, std::int64_t head, std::int64_t query) const {
    return (sample * shape.heads + head) * shape.rows.seq_len + query;
  }

  /// Where a result of [tile, head_dim] is added up: in its place m, or in scratch memory if m holds 16 bits.
  KOKKOS_INLINE_FUNCTION StridedMatrix<A> sums_of(StridedMatrix<S> m, Scratch<A>& scratch) const {
    if constexpr (narrow)
      return {scratch.take(shape.head_dim * tile), shape.head_dim};
    else
      return m;
  }
  /// Rounds them into their place, by the threads that added them up.
  KOKKOS_INLINE_FUNCTION void store(TileTeam const& team, int rows, StridedMatrix<A> sums, StridedMatrix<S> m) const {
    if constexpr (narrow) convert_tile(team, rows, static_cast<int>(shape.head_dim), sums, m);
  }

  /// Dropout factors of a tile: keep(query, key), or its transpose.
  KOKKOS_INLINE_FUNCTION void keep(TileTeam const& team, std::int64_t sample, std::int64_t head, std::int64_t query0,
                                   int queries, std::int64_t key0, int keys, bool transposed,
                                   StridedMatrix<A> out) const {
    auto const stream = static_cast<std::uint64_t>(shape.rows.first_sample + sample);
    std::int64_t const seq = shape.rows.seq_len;
    tile_rows(team, queries, [&](int i) {
      auto const first = static_cast<std::uint64_t>(((shape.first_head + head) * seq + query0 + i) * seq + key0);
      for (int j = 0; j < keys; j += 4) {
        int const n = keys - j < 4 ? keys - j : 4;
        if (transposed)
          keep_factors(dropout, stream, first + j, n, out.row(j) + i, static_cast<int>(out.stride));
        else
          keep_factors(dropout, stream, first + j, n, out.row(i) + j);
      }
    });
  }

  /// Bytes for some operands of [tile, head_dim], some score tiles and some vectors along a tile.
  std::size_t scratch_bytes(int operands, int score_tiles, int vectors) const {
    std::int64_t const n = operands * Scratch<A>::padded(shape.head_dim * tile) + score_tiles * tile * tile +
                           vectors * Scratch<A>::padded(tile);
    return static_cast<std::size_t>(n) * sizeof(A) + 64;
  }
};

/// Attention as a portable kernel, for every execution space. Arguments as in attention.hpp; `delta` has one element
/// per query and head.
namespace portable {
template <class S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                       View2<S> out, View1<Acc<S>> lse);
template <class S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                        View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout, View2<S> dqkv,
                        View1<Acc<S>> delta);
}  // namespace portable

/// Attention on the host, its products done by the BLAS. Only where kernels run on the host.
namespace blas {
template <class S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                       View2<S> out, View1<Acc<S>> lse);
template <class S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                        View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout, View2<S> dqkv);
}  // namespace blas

}  // namespace p3d::kernels
