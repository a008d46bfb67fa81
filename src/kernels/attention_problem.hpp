// SPDX-License-Identifier: Apache-2.0
#pragma once
// The problem that both forms of attention solve: the place of one head of one sample in the matrices, the keys that a
// query sees, and the dropout factors. Queries and keys are named by their places in their token sets, which need not
// be their places in the sample: under context parallelism a rank may have tokens 0-3 and 12-15 of 16, and its query at
// place 4 is token 12.

#include <p3d/base/error.hpp>
#include <p3d/kernels/attention.hpp>

#include "attention_forms.hpp"
#include "attention_tile.hpp"
#include "keep.hpp"

#include <algorithm>

namespace p3d::kernels {

/// A range of keys, as places in the set of keys.
struct KeyRange {
  std::int64_t begin, end;
};

/// One call's description, with functions that find heads and keys. Queries and keys are named by their places in their
/// sets.
template <class S>
struct Problem {
  using A = Acc<S>;
  /// True when results of type D are added up in memory of type Acc<S> beside the matrix that takes them.
  template <class D>
  static constexpr bool beside = !std::is_same_v<D, A>;
  /// True when elements are narrower than the BLAS takes and are widened for it.
  static constexpr bool narrow = beside<S>;
  AttentionShape shape;
  Dropout dropout;
  StridedMatrix<S const> q, k, v;
  std::int64_t queries, keys;  ///< queries and keys of one sample

  Problem(AttentionShape const& s, Dropout const& d, HeadRows<S const> query, HeadRows<S const> key,
          HeadRows<S const> value)
      : shape(s),
        dropout(d),
        q{query.data, query.stride},
        k{key.data, key.stride},
        v{value.data, value.stride},
        queries(s.queries.size()),
        keys(s.keys.size()) {
    P3D_REQUIRE(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "kv_heads must divide heads");
    P3D_REQUIRE(s.documents.extent(0) == 0 || static_cast<std::int64_t>(s.documents.extent(0)) == s.samples * s.seq_len,
                "documents are known of all tokens of the samples");
  }

  /// The [queries, head_dim] block of one head, from query `place` on, of queries or their gradients.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_query(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                   std::int64_t head) const {
    return {m.row(sample * queries + place) + head * shape.head_dim, m.stride};
  }
  /// The [queries, values()] block of one head, from query `place` on, of outputs or their gradients.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_output(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                    std::int64_t head) const {
    return {m.row(sample * queries + place) + head * shape.values(), m.stride};
  }
  /// The [keys, head_dim] block of one head, from key `place` on, of keys or their gradients.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_key(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                 std::int64_t head) const {
    return {m.row(sample * keys + place) + head * shape.head_dim, m.stride};
  }
  /// The [keys, values()] block of one head, from key `place` on, of values or their gradients.
  template <class U>
  KOKKOS_INLINE_FUNCTION StridedMatrix<U> of_value(StridedMatrix<U> m, std::int64_t sample, std::int64_t place,
                                                   std::int64_t head) const {
    return {m.row(sample * keys + place) + head * shape.values(), m.stride};
  }
  /// The kv head that a query head uses.
  KOKKOS_INLINE_FUNCTION std::int64_t kv_of(std::int64_t head) const { return head / (shape.heads / shape.kv_heads); }
  /// The place of a query's numbers in lse and delta.
  KOKKOS_INLINE_FUNCTION std::int64_t statistic(std::int64_t sample, std::int64_t head, std::int64_t query) const {
    return (sample * shape.heads + head) * queries + query;
  }

  /// The keys that a query sees. Both ends ascend with the query.
  KOKKOS_INLINE_FUNCTION KeyRange visible(std::int64_t sample, std::int64_t query) const {
    std::int64_t const index = shape.queries.at(query);
    std::int64_t first = shape.documents.extent(0) > 0 ? shape.documents(sample * shape.seq_len + index) : 0;
    if (shape.window > 0 && first < index + 1 - shape.window) first = index + 1 - shape.window;
    return {first > 0 ? keys_below(first) : 0, keys_below(index + 1)};
  }
  /// shape.keys.below(index), without its divisions where the keys of a run follow each other.
  KOKKOS_INLINE_FUNCTION std::int64_t keys_below(std::int64_t index) const {
    if (shape.keys.stride != 1) return shape.keys.below(index);
    std::int64_t sum = 0;
    for (auto const& run : shape.keys.runs) {
      std::int64_t const n = index - run.first;
      sum += n < 0 ? 0 : (n < run.count ? n : run.count);
    }
    return sum;
  }
  /// The keys that at least one of `count` consecutive queries sees.
  KOKKOS_INLINE_FUNCTION KeyRange visible(std::int64_t sample, std::int64_t query, int count) const {
    return {visible(sample, query).begin, visible(sample, query + count - 1).end};
  }
  /// The keys that a query sees among `count` keys from key0 on, counted from key0.
  KOKKOS_INLINE_FUNCTION KeyRange visible_in(std::int64_t sample, std::int64_t query, std::int64_t key0,
                                             int count) const {
    auto const all = visible(sample, query);
    auto const clamp = [=](std::int64_t place) {
      std::int64_t const x = place - key0;
      return x < 0 ? 0 : (x < count ? x : count);
    };
    return {clamp(all.begin), clamp(all.end)};
  }

  /// Writes the dropout factors of a query's probabilities for n consecutive keys from key0 on to out.
  KOKKOS_INLINE_FUNCTION void factors(std::int64_t sample, std::int64_t head, std::int64_t query, std::int64_t key0,
                                      int n, A* out) const {
    auto const stream = static_cast<std::uint64_t>(shape.first_sample + sample);
    std::int64_t const seq = dropout.sample_tokens > 0 ? dropout.sample_tokens : shape.seq_len;
    std::int64_t const row = ((shape.first_head + head) * seq + shape.queries.at(query)) * seq;
    std::int64_t const first_run = shape.keys.runs[0].count;
    for (int j = 0; j < n;) {
      std::int64_t const place = key0 + j, left = place < first_run ? first_run - place : n - j;
      int count = shape.keys.stride == 1 ? n - j : 1;
      if (left < count) count = static_cast<int>(left);
      keep_factors(dropout, stream, static_cast<std::uint64_t>(row + shape.keys.at(place)), count, out + j);
      j += count;
    }
  }
};

/// HeadRows as a StridedMatrix.
template <class U>
StridedMatrix<U> matrix(HeadRows<U> m) {
  return {m.data, m.stride};
}

/// Calls INSTANTIATE(S, D) for the types of elements and of results.
#define P3D_ATTENTION_TYPES(INSTANTIATE) \
  INSTANTIATE(float, float)              \
  INSTANTIATE(double, double)            \
  INSTANTIATE(bfloat16, bfloat16)        \
  INSTANTIATE(bfloat16, float)           \
  INSTANTIATE(float16, float16)          \
  INSTANTIATE(float16, float)

/// Computes delta of some queries of a head from the rows of out and dout.
template <class S>
struct DeltaRows {
  using T = Acc<S>;
  StridedMatrix<S const> out, dout;
  View1<T> delta;

  KOKKOS_INLINE_FUNCTION void make(TileTeam const& team, Problem<S> const& p, std::int64_t sample, std::int64_t head,
                                   std::int64_t query0, int queries) const {
    int const dim = static_cast<int>(p.shape.values());
    auto const y = p.of_output(out, sample, query0, head), dy = p.of_output(dout, sample, query0, head);
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
