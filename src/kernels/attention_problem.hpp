// SPDX-License-Identifier: Apache-2.0
#pragma once
// What both forms of attention share: where one head of one sample lies in the matrices, which keys a query sees, and
// the dropout factors.

#include <p3d/base/error.hpp>
#include <p3d/kernels/attention.hpp>

#include "attention_forms.hpp"
#include "attention_tile.hpp"

#include <algorithm>

namespace p3d::kernels {

/// Places of keys, in the set of keys that there are.
struct KeyRange {
  std::int64_t begin, end;
};

/// Where one head of one sample lies, and the parts of the description that every kernel needs. Queries and keys are
/// called by their places in their sets.
template <class S>
struct Problem {
  using A = Acc<S>;
  /// Whether results add up beside a matrix of type D that they are stored in.
  template <class D>
  static constexpr bool beside = !std::is_same_v<D, A>;
  /// Whether elements are widened for the BLAS.
  static constexpr bool narrow = beside<S>;
  AttentionShape shape;
  Dropout dropout;
  StridedMatrix<S const> q, k, v;
  std::int64_t queries, keys;  ///< of a sample
  int tile = 32;               ///< queries and keys of one tile: the score tile is square
  std::int64_t query_tiles = 0, key_tiles = 0;

  Problem(AttentionShape const& s, Dropout const& d, HeadRows<S const> query, HeadRows<S const> key,
          HeadRows<S const> value)
      : shape(s),
        dropout(d),
        q{query.data, query.stride},
        k{key.data, key.stride},
        v{value.data, value.stride},
        queries(s.queries.size()),
        keys(s.keys.size()) {
    cut();
    P3D_REQUIRE(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "kv_heads must divide heads");
    P3D_REQUIRE(s.documents.extent(0) == 0 || static_cast<std::int64_t>(s.documents.extent(0)) == s.samples * s.seq_len,
                "documents are known of all tokens of the samples");
  }

  /// Takes the largest tiles, 32 or 16, for which a team finds room in the memory beside its cores: for some operands
  /// of [tile, head_dim], some score tiles and some vectors along a tile. The bytes of all.
  std::size_t fit(int operands, int score_tiles, int vectors) {
    auto const bytes = [&] {
      std::int64_t const n = operands * Scratch<A>::padded((shape.head_dim + 1) * tile) +
                             score_tiles * Scratch<A>::padded((tile + 1) * tile) + vectors * Scratch<A>::padded(tile);
      return static_cast<std::size_t>(n) * sizeof(A) + 64;
    };
    tile = 32;
    if (bytes() > static_cast<std::size_t>(TilePolicy::scratch_size_max(0))) tile = 16;
    cut();
    return bytes();
  }
  void cut() {
    query_tiles = (queries + tile - 1) / tile;
    key_tiles = (keys + tile - 1) / tile;
  }

  /// The [places, head_dim] block from `place` on of a head of a matrix with a row for each query.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_query(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                   std::int64_t head) const {
    return {m.row(sample * queries + place) + head * shape.head_dim, m.stride};
  }
  /// The same of a matrix with a row for each key.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_key(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                 std::int64_t head) const {
    return {m.row(sample * keys + place) + head * shape.head_dim, m.stride};
  }
  KOKKOS_INLINE_FUNCTION std::int64_t kv_of(std::int64_t head) const { return head / (shape.heads / shape.kv_heads); }
  /// Queries, or keys, in the tile that starts here.
  KOKKOS_INLINE_FUNCTION int queries_in(std::int64_t place) const { return in_tile(queries - place); }
  KOKKOS_INLINE_FUNCTION int keys_in(std::int64_t place) const { return in_tile(keys - place); }
  KOKKOS_INLINE_FUNCTION int in_tile(std::int64_t left) const { return static_cast<int>(left < tile ? left : tile); }
  KOKKOS_INLINE_FUNCTION std::int64_t statistic(std::int64_t sample, std::int64_t head, std::int64_t query) const {
    return (sample * shape.heads + head) * queries + query;
  }

  /// The keys that a query sees. Both ends ascend with the query.
  KOKKOS_INLINE_FUNCTION KeyRange visible(std::int64_t sample, std::int64_t query) const {
    std::int64_t const index = shape.queries.at(query);
    std::int64_t first = shape.documents.extent(0) > 0 ? shape.documents(sample * shape.seq_len + index) : 0;
    if (shape.window > 0 && first < index + 1 - shape.window) first = index + 1 - shape.window;
    return {first > 0 ? shape.keys.below(first) : 0, shape.keys.below(index + 1)};
  }
  /// The keys that some of `count` queries in a row see.
  KOKKOS_INLINE_FUNCTION KeyRange visible(std::int64_t sample, std::int64_t query, int count) const {
    return {visible(sample, query).begin, visible(sample, query + count - 1).end};
  }
  /// The part of `count` keys from key0 on that a query sees, counted from key0.
  KOKKOS_INLINE_FUNCTION KeyRange visible_in(std::int64_t sample, std::int64_t query, std::int64_t key0,
                                             int count) const {
    auto const all = visible(sample, query);
    auto const clamp = [=](std::int64_t place) {
      std::int64_t const x = place - key0;
      return x < 0 ? 0 : (x < count ? x : count);
    };
    return {clamp(all.begin), clamp(all.end)};
  }

  /// Where a result of [tile, head_dim] is added up: in its place m, or in scratch memory if m holds 16 bits.
  template <class D>
  KOKKOS_INLINE_FUNCTION StridedMatrix<A> sums_of(StridedMatrix<D> m, Scratch<A>& scratch) const {
    if constexpr (beside<D>)
      return scratch.take(tile, shape.head_dim);
    else
      return m;
  }
  /// Rounds them into their place, by the threads that added them up.
  template <class D>
  KOKKOS_INLINE_FUNCTION void store(TileTeam const& team, int rows, StridedMatrix<A> sums, StridedMatrix<D> m) const {
    if constexpr (beside<D>) convert_tile(team, rows, static_cast<int>(shape.head_dim), sums, m);
  }

  /// Dropout factors of a tile: keep(query, key), or its transpose.
  KOKKOS_INLINE_FUNCTION void keep(TileTeam const& team, std::int64_t sample, std::int64_t head, std::int64_t query0,
                                   int rows, std::int64_t key0, int columns, bool transposed,
                                   StridedMatrix<A> out) const {
    auto const stream = static_cast<std::uint64_t>(shape.first_sample + sample);
    std::int64_t const seq = dropout.sample_tokens > 0 ? dropout.sample_tokens : shape.seq_len;
    std::int64_t const first_run = shape.keys.runs[0].count;
    bool const in_a_row = shape.keys.stride == 1;
    tile_rows(team, rows, [&](int i) {
      auto const row = ((shape.first_head + head) * seq + shape.queries.at(query0 + i)) * seq;
      // If the keys are in a row, a lane draws four columns, which are one block of random words, the host all of them.
      tile_groups(team, columns, 4, [=, this](int j, int end) {
        while (j < end) {
          std::int64_t const place = key0 + j, left = place < first_run ? first_run - place : end - j;
          int n = in_a_row ? end - j : 1;
          if (left < n) n = static_cast<int>(left);
          auto const first = static_cast<std::uint64_t>(row + shape.keys.at(place));
          if (transposed)
            keep_factors(dropout, stream, first, n, out.row(j) + i, static_cast<int>(out.stride));
          else
            keep_factors(dropout, stream, first, n, out.row(i) + j);
          j += n;
        }
      });
    });
  }
};

template <class U>
StridedMatrix<U> matrix(HeadRows<U> m) {
  return {m.data, m.stride};
}

/// INSTANTIATE(S, D) for the types of elements and of results.
#define P3D_ATTENTION_TYPES(INSTANTIATE) \
  INSTANTIATE(float, float)              \
  INSTANTIATE(double, double)            \
  INSTANTIATE(bfloat16, bfloat16)        \
  INSTANTIATE(bfloat16, float)           \
  INSTANTIATE(float16, float16)          \
  INSTANTIATE(float16, float)

/// delta of some queries of a head, from the rows of out and dout.
template <class S>
struct DeltaRows {
  using T = Acc<S>;
  StridedMatrix<S const> out, dout;
  View1<T> delta;

  KOKKOS_INLINE_FUNCTION void make(TileTeam const& team, Problem<S> const& p, std::int64_t sample, std::int64_t head,
                                   std::int64_t query0, int queries) const {
    int const dim = static_cast<int>(p.shape.head_dim);
    auto const y = p.of_query(out, sample, query0, head), dy = p.of_query(dout, sample, query0, head);
    tile_rows(team, queries, [&](int i) {
      S const* const a = y.row(i);
      S const* const b = dy.row(i);
      T const sum = tile_col_sum<T>(team, dim, [=](int d) { return T(a[d]) * T(b[d]); });
      tile_once(team, [&] { delta(p.statistic(sample, head, query0 + i)) = sum; });
    });
  }
};

#define P3D_INSTANTIATE_ATTENTION(scope, S, D)                                                                         \
  template void scope attention_forward<S, D>(ExecSpace const&, AttentionShape const&, Dropout const&,                 \
                                              AttentionScratch, HeadRows<S const>, HeadRows<S const>,                  \
                                              HeadRows<S const>, Store, HeadRows<D>, View1<Acc<S>>);                   \
  template void scope attention_backward<S, D>(                                                                        \
      ExecSpace const&, AttentionShape const&, Dropout const&, AttentionScratch, HeadRows<S const>, HeadRows<S const>, \
      HeadRows<S const>, HeadRows<S const>, View1<Acc<S> const>, View1<Acc<S> const>, Store, HeadRows<D>, Store,       \
      HeadRows<D>, HeadRows<D>, WholeOutput<S> const&);

}  // namespace p3d::kernels
