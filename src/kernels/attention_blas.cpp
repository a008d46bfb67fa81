// SPDX-License-Identifier: Apache-2.0
// Attention on the host. The products of a tile go to the BLAS, which reads queries, keys and values where they lie;
// between them each row of scores is walked once, in cache. Tiles above the diagonal are left out. A tile on the
// diagonal is cut into strips of queries that each end at their own last key, so at most half a strip of keys per query
// is computed in vain.
//
// The BLAS takes float and double. Elements of 16 bits are widened into panels in the scratch memory of the thread, a
// tile or a block of keys at a time: 1/25 of the work at a head dimension of 64.

#include "attention_problem.hpp"

#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/host_blas.hpp>

#include <algorithm>
#include <limits>

namespace p3d::kernels {

namespace {

using linalg::host_gemm;
using linalg::Op;

/// Queries and keys of a score tile. Large ones give the BLAS long runs and pack keys and values less often; two of
/// them must stay in a core's second-level cache.
constexpr int edge = 256;
/// Queries of a strip on the diagonal. (Where kernels run on a device, nothing here is used.)
[[maybe_unused]] constexpr int strip_rows = 64;

/// Scratch for `tiles` score tiles, `vectors` numbers per query of a tile and, where elements are narrow, `panels` of a
/// tile's rows and `more` numbers, in bytes, as scratch_of wants it.
template <class S>
std::size_t scratch_bytes(Problem<S> const& p, int tiles, int vectors, int panels, std::int64_t more = 0) {
  std::int64_t const wide = p.narrow ? panels * edge * p.shape.head_dim + more : 0;
  return static_cast<std::size_t>(tiles * edge * edge + vectors * edge + wide) * sizeof(Acc<S>) + 64;
}

/// Memory for a panel, if elements are narrow.
template <class S>
Acc<S>* take_panel(Problem<S> const& p, Scratch<Acc<S>>& scratch, std::int64_t rows = edge) {
  return p.narrow ? scratch.take(rows * p.shape.head_dim) : nullptr;
}
/// m [rows, head_dim] as the BLAS takes it: where it lies, or widened into the panel.
template <class S>
StridedMatrix<Acc<S> const> widened(TileTeam const& team, [[maybe_unused]] int rows, [[maybe_unused]] std::int64_t dim,
                                    StridedMatrix<S const> m, [[maybe_unused]] Acc<S>* panel) {
  if constexpr (std::is_same_v<S, Acc<S>>) {
    return m;
  } else {
    convert_tile(team, rows, static_cast<int>(dim), m, StridedMatrix<Acc<S>>{panel, dim});
    return {panel, dim};
  }
}
/// Where a result that belongs into m is added up: there, or in the panel.
template <class S>
StridedMatrix<Acc<S>> sums_of(std::int64_t dim, StridedMatrix<S> m, Acc<S>* panel) {
  if constexpr (std::is_same_v<S, Acc<S>>)
    return m;
  else
    return {panel, dim};
}

/// Calls body(first query, queries, first key, keys) for the strips of one tile of queries, keys ascending; positions
/// count within the sample.
template <class Body>
void for_strips(std::int64_t query0, int queries, Body const& body) {
  for (std::int64_t key0 = 0; key0 < query0; key0 += edge) body(query0, queries, key0, edge);
  for (int i = 0; i < queries; i += strip_rows) {
    int const rows = std::min(strip_rows, queries - i);
    body(query0 + i, rows, query0, i + rows);
  }
}

/// How many of `keys` from key0 on a query sees.
[[maybe_unused]] int visible(std::int64_t query, std::int64_t key0, int keys) {
  return static_cast<int>(std::min<std::int64_t>(keys, query - key0 + 1));
}

/// Queries of the tile, or keys of the block, that starts at this position.
[[maybe_unused]] int queries_in(std::int64_t position, std::int64_t seq_len) {
  return static_cast<int>(std::min<std::int64_t>(edge, seq_len - position));
}

/// The keys and values that a tile is at.
template <class S>
struct KeyBlock {
  Problem<S> const& p;
  Acc<S>*const key_panel, *const value_panel;
  std::int64_t const sample, kv;
  std::int64_t key0 = -1;
  StridedMatrix<Acc<S> const> k{}, v{};

  KeyBlock(Problem<S> const& problem, Scratch<Acc<S>>& scratch, std::int64_t s, std::int64_t kv_head)
      : p(problem), key_panel(take_panel(p, scratch)), value_panel(take_panel(p, scratch)), sample(s), kv(kv_head) {}
  void move_to(TileTeam const& team, std::int64_t position) {
    if (position == key0) return;  // the next strip on the diagonal
    key0 = position;
    int const keys = queries_in(key0, p.shape.rows.seq_len);
    k = widened(team, keys, p.shape.head_dim, p.block(p.qkv, sample, key0, p.key_head(kv)), key_panel);
    v = widened(team, keys, p.shape.head_dim, p.block(p.qkv, sample, key0, p.value_head(kv)), value_panel);
  }
};

/// One thread: one tile of queries of one head, over blocks of keys with a running maximum and sum (arXiv 2205.14135,
/// algorithm 1).
template <class S>
struct ForwardTile {
  using T = Acc<S>;
  Problem<S> p;
  std::int64_t tiles;  ///< along the sequence
  StridedMatrix<S> out;
  View1<T> lse;
  std::size_t bytes;
  int level = 0;

  void operator()(TileTeam const& team) const {
    // The longest tiles first.
    std::int64_t const query0 = (tiles - 1 - team.league_rank() % tiles) * edge;
    std::int64_t const head = team.league_rank() / tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = queries_in(query0, p.shape.rows.seq_len);
    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const score{scratch.take(edge * edge), edge};
    T* const top = scratch.take(edge);  // running maximum and sum of each row
    T* const sum = scratch.take(edge);
    StridedMatrix<T> const keep{p.dropout.active() ? scratch.take(edge * edge) : nullptr, edge};
    auto const place = p.block(out, sample, query0, head);
    auto const result = sums_of(dim, place, take_panel(p, scratch));
    auto const tile_q = widened(team, queries, dim, p.block(p.qkv, sample, query0, head), take_panel(p, scratch));
    KeyBlock<S> block(p, scratch, sample, p.kv_of(head));

    for_strips(query0, queries, [&](std::int64_t strip0, int rows, std::int64_t key0, int keys) {
      block.move_to(team, key0);
      auto const q = tile_q.from(strip0 - query0, 0), k = block.k, v = block.v;
      auto const y = result.from(strip0 - query0, 0);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, dim, static_cast<T>(p.shape.scale), q.data, q.stride, k.data,
                   k.stride, T(0), score.data, score.stride);
      if (keep.data) p.keep(team, sample, head, strip0, rows, key0, keys, false, keep);
      for (int i = 0; i < rows; ++i)
        softmax_row(team, score.row(i), keep.data ? keep.row(i) : nullptr, visible(strip0 + i, key0, keys), keys,
                    key0 == 0, top[strip0 - query0 + i], sum[strip0 - query0 + i], y.row(i), dim);
      host_gemm<T>(Op::none, Op::none, rows, dim, keys, T(1), score.data, score.stride, v.data, v.stride,
                   key0 == 0 ? T(0) : T(1), y.data, y.stride);
    });
    for (int i = 0; i < queries; ++i) {
      T const* const yi = result.row(i);
      S* const stored = place.row(i);
      T const inverse = T(1) / sum[i];
      tile_cols(team, dim, [=](int d) { put(stored[d], yi[d] * inverse); });
      lse(p.lse_at(sample, head, query0 + i)) = top[i] + std::log(sum[i]);
    }
  }

  /// Scores of one row become exp(score - top) for the n visible keys, times their dropout factors; what was summed
  /// before shrinks to the new maximum.
  static void softmax_row(TileTeam const& team, T* s, T const* keep, int n, int keys, bool first, T& top, T& sum, T* y,
                          int dim) {
    T const before = first ? -std::numeric_limits<T>::infinity() : top;
    T const now = tile_col_max<T>(team, n, before, [=](int j) { return s[j]; });
    T const part = tile_col_sum<T>(team, n, [=](int j) { return s[j] = exp_of(s[j] - now); });
    for (int j = n; j < keys; ++j) s[j] = T(0);
    if (keep) tile_cols(team, n, [=](int j) { s[j] *= keep[j]; });
    top = now;
    T const shrink = first ? T(0) : exp_of(before - now);
    sum = first ? part : sum * shrink + part;
    if (!first && shrink != T(1)) tile_cols(team, dim, [=](int d) { y[d] *= shrink; });
  }
};

/// One thread: all queries that use one kv head of one sample, so no two threads add to one element of dk and dv. The
/// formulas stand in attention.cpp; each block of scores is made once, five products in all.
template <class S>
struct BackwardHead {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> out, dout;
  View1<T const> lse;
  StridedMatrix<S> dqkv;
  std::size_t bytes;
  int level = 0;

  void operator()(TileTeam const& team) const {
    auto const& shape = p.shape;
    std::int64_t const kv = team.league_rank() % shape.kv_heads, sample = team.league_rank() / shape.kv_heads;
    std::int64_t const group = shape.heads / shape.kv_heads, dim = shape.head_dim, seq = shape.rows.seq_len;
    auto scratch = scratch_of<T>(team, level, bytes);  // once: asking again gives the next piece
    StridedMatrix<S> const place[] = {p.block(dqkv, sample, 0, p.key_head(kv)),
                                      p.block(dqkv, sample, 0, p.value_head(kv))};
    StridedMatrix<T> const dk = sums_of(dim, place[0], take_panel(p, scratch, seq));
    StridedMatrix<T> const dv = sums_of(dim, place[1], take_panel(p, scratch, seq));
    for (auto const& d : {dk, dv})
      for (std::int64_t i = 0; i < seq; ++i) std::fill_n(d.row(i), dim, T(0));
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (std::int64_t query0 = 0; query0 < seq; query0 += edge) tile(team, scratch, sample, head, kv, query0, dk, dv);
    p.store(team, static_cast<int>(seq), dk, place[0]);
    p.store(team, static_cast<int>(seq), dv, place[1]);
  }

  void tile(TileTeam const& team, Scratch<T> scratch, std::int64_t sample, std::int64_t head, std::int64_t kv,
            std::int64_t query0, StridedMatrix<T> head_dk, StridedMatrix<T> head_dv) const {
    int const dim = static_cast<int>(p.shape.head_dim), queries = queries_in(query0, p.shape.rows.seq_len);
    T const scale = static_cast<T>(p.shape.scale);
    StridedMatrix<T> const score{scratch.take(edge * edge), edge}, dprob{scratch.take(edge * edge), edge};
    T* const delta = scratch.take(edge);
    StridedMatrix<T> const keep{p.dropout.active() ? scratch.take(edge * edge) : nullptr, edge};
    auto const tile_q = widened(team, queries, dim, p.block(p.qkv, sample, query0, head), take_panel(p, scratch));
    auto const tile_dy = widened(team, queries, dim, p.block(dout, sample, query0, head), take_panel(p, scratch));
    auto const place = p.block(dqkv, sample, query0, head);
    auto const tile_dq = sums_of(dim, place, take_panel(p, scratch));
    KeyBlock<S> block(p, scratch, sample, kv);
    for (int i = 0; i < queries; ++i) {
      S const* const a = p.block(out, sample, query0, head).row(i);
      T const* const b = tile_dy.row(i);
      delta[i] = tile_col_sum<T>(team, dim, [=](int d) { return a[d] * b[d]; });
    }
    for_strips(query0, queries, [&](std::int64_t strip0, int rows, std::int64_t key0, int keys) {
      block.move_to(team, key0);
      auto const q = tile_q.from(strip0 - query0, 0), dy = tile_dy.from(strip0 - query0, 0), k = block.k, v = block.v;
      auto const dq = tile_dq.from(strip0 - query0, 0), dk = head_dk.from(key0, 0), dv = head_dv.from(key0, 0);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, dim, scale, q.data, q.stride, k.data, k.stride, T(0),
                   score.data, edge);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, dim, T(1), dy.data, dy.stride, v.data, v.stride, T(0),
                   dprob.data, edge);
      if (keep.data) p.keep(team, sample, head, strip0, rows, key0, keys, false, keep);
      for (int i = 0; i < rows; ++i) {
        T* const s = score.row(i);
        T* const d = dprob.row(i);
        int const n = visible(strip0 + i, key0, keys);
        T const norm = lse(p.lse_at(sample, head, strip0 + i)), shift = delta[strip0 - query0 + i];
        if (keep.data) {
          T const* const m = keep.row(i);
          tile_cols(team, n, [=](int j) {
            T const prob = exp_of(s[j] - norm);
            d[j] = prob * (d[j] * m[j] - shift) * scale;
            s[j] = prob * m[j];
          });
        } else {
          tile_cols(team, n, [=](int j) {
            T const prob = exp_of(s[j] - norm);
            d[j] = prob * (d[j] - shift) * scale;
            s[j] = prob;
          });
        }
        for (int j = n; j < keys; ++j) s[j] = d[j] = T(0);
      }
      host_gemm<T>(Op::transpose, Op::none, keys, dim, rows, T(1), score.data, edge, dy.data, dy.stride, T(1), dv.data,
                   dv.stride);
      host_gemm<T>(Op::transpose, Op::none, keys, dim, rows, T(1), dprob.data, edge, q.data, q.stride, T(1), dk.data,
                   dk.stride);
      host_gemm<T>(Op::none, Op::none, rows, dim, keys, T(1), dprob.data, edge, k.data, k.stride,
                   key0 == 0 ? T(0) : T(1), dq.data, dq.stride);
    });
    p.store(team, queries, tile_dq, place);
  }
};

}  // namespace

template <class S>
void blas::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                             View2<S const> qkv, View2<S> out, View1<Acc<S>> lse) {
  if constexpr (on_host) {  // elsewhere this compiles to nothing and nobody calls it
    Problem<S> const p(shape, dropout, qkv);
    std::int64_t const tiles = (shape.rows.seq_len + edge - 1) / edge;
    StridedMatrix<S> const y{out.data(), static_cast<std::int64_t>(out.stride(0))};
    linalg::SingleThreadedBlas const alone;  // the threads are Kokkos' here
    launch_tiles("p3d::kernels::attention_forward", exec, shape.rows.samples * shape.heads * tiles,
                 ForwardTile<S>{p, tiles, y, lse, scratch_bytes(p, dropout.active() ? 2 : 1, 2, 4)});
  }
}

template <class S>
void blas::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                              View2<S const> qkv, View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout,
                              View2<S> dqkv) {
  if constexpr (on_host) {
    Problem<S> const p(shape, dropout, qkv);
    std::int64_t const head_sums = 2 * Scratch<Acc<S>>::padded(shape.rows.seq_len * shape.head_dim);  // dk and dv
    auto const block = []<class V>(View2<V> const& m) {
      return StridedMatrix<V>{m.data(), static_cast<std::int64_t>(m.stride(0))};
    };
    linalg::SingleThreadedBlas const alone;  // the threads are Kokkos' here
    launch_tiles("p3d::kernels::attention_backward", exec, shape.rows.samples * shape.kv_heads,
                 BackwardHead<S>{p, block(out), block(dout), lse, block(dqkv),
                                 scratch_bytes(p, dropout.active() ? 3 : 2, 1, 5, head_sums)});
  }
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void blas::attention_forward<S>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<S const>,  \
                                           View2<S>, View1<Acc<S>>);                                                 \
  template void blas::attention_backward<S>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<S const>, \
                                            View2<S const>, View1<Acc<S> const>, View2<S const>, View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
