// SPDX-License-Identifier: Apache-2.0
// Attention on the host. The GEMMs of a tile go to the BLAS, which reads queries, keys and values where they lie;
// between them each row of scores is walked once, in cache. Tiles above the diagonal are left out. A tile on the
// diagonal is cut into strips of queries that each end at their own last key, so at most half a strip of keys per query
// is computed in vain.
//
// Example: 512 queries and keys are tiles of 256 x 256; the second tile of queries takes the first tile of keys as a
// whole, and the second in 4 strips of 64 queries with 64, 128, 192 and 256 keys.
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

/// Queries and keys of a score tile. Large tiles give the BLAS long runs and pack keys and values less often; two of
/// them must fit in a core's second-level cache.
constexpr int edge = 256;
/// Queries of a strip on the diagonal. (Unused where kernels run on a device.)
[[maybe_unused]] constexpr int strip_rows = 64;

/// The bytes of a tile's scratch memory, as scratch_of wants them: `tiles` score tiles, `vectors` numbers per query of
/// a tile, panels of a tile's rows with `columns` columns in all where elements are narrow, and `more` numbers.
template <class S>
std::size_t scratch_bytes(Problem<S> const& p, int tiles, int vectors, std::int64_t columns, std::int64_t more = 0) {
  std::int64_t const wide = p.narrow ? edge * columns : 0;
  return static_cast<std::size_t>(tiles * edge * edge + vectors * edge + wide + more) * sizeof(Acc<S>) + 64;
}

/// Takes memory for a panel [rows, columns] where elements of type D are narrow; else null.
template <class D, class S>
Acc<S>* take_panel(Problem<S> const& p, Scratch<Acc<S>>& scratch, std::int64_t columns, std::int64_t rows = edge) {
  return p.template beside<D> ? scratch.take(rows * columns) : nullptr;
}
/// m [rows, dim] as the BLAS takes it: the matrix itself, or its elements widened into the panel.
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
/// The place where a result that belongs into m is added up: m itself, or the panel.
template <class D>
StridedMatrix<Acc<D>> sums_of(std::int64_t dim, StridedMatrix<D> m, Acc<D>* panel) {
  if constexpr (std::is_same_v<D, Acc<D>>)
    return m;
  else
    return {panel, dim};
}
/// Rounds sums into m, unless they were added up there.
template <class T, class D>
void round_into(TileTeam const& team, std::int64_t rows, std::int64_t dim, StridedMatrix<T> sums, StridedMatrix<D> m) {
  if constexpr (!std::is_same_v<T, D>) convert_tile(team, static_cast<int>(rows), static_cast<int>(dim), sums, m);
}
template <class T>
void fill_zero(StridedMatrix<T> m, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) std::fill_n(m.row(i), columns, T(0));
}

/// The strips of a tile's sums that hold numbers already. The first GEMM of a strip overwrites, for which a BLAS has
/// quicker kernels than for adding, and which saves clearing the sums.
class StartedStrips {
public:
  explicit StartedStrips(bool all) { std::fill_n(started_, edge / strip_rows, all); }
  /// The beta of the next GEMM into these rows: 0 where none of their strips has numbers, else 1. In the latter case
  /// strips without numbers are cleared first.
  template <class T>
  T beta(int first, int rows, StridedMatrix<T> sums, std::int64_t columns) {
    int const begin = first / strip_rows, end = (first + rows - 1) / strip_rows + 1;
    bool const none = std::none_of(started_ + begin, started_ + end, [](bool s) { return s; });
    if (!none) finish(begin, end, first + rows, sums, columns);
    std::fill(started_ + begin, started_ + end, true);
    return none ? T(0) : T(1);
  }
  /// Clears the strips that no GEMM has written.
  template <class T>
  void finish(int rows, StridedMatrix<T> sums, std::int64_t columns) {
    finish(0, (rows + strip_rows - 1) / strip_rows, rows, sums, columns);
  }

private:
  template <class T>
  void finish(int begin, int end, int rows, StridedMatrix<T> sums, std::int64_t columns) {
    for (int s = begin; s < end; ++s)
      if (!started_[s]) fill_zero(sums.from(s * strip_rows, 0), std::min(strip_rows, rows - s * strip_rows), columns);
  }
  bool started_[edge / strip_rows];
};

/// The queries of a tile, or the keys of a block, when `left` are left.
[[maybe_unused]] int in_edge(std::int64_t left) { return static_cast<int>(std::min<std::int64_t>(edge, left)); }

/// Calls body(first query, queries, first key, keys) for one tile of queries and the keys that they see, keys
/// ascending. A block of keys that every query sees comes whole; else each strip of queries comes with the keys that
/// some of them see.
template <class S, class Body>
void for_strips(Problem<S> const& p, std::int64_t sample, std::int64_t query0, int queries, Body const& body) {
  auto const seen = p.visible(sample, query0, queries);
  auto const first = p.visible(sample, query0), last = p.visible(sample, query0 + queries - 1);
  for (std::int64_t key0 = seen.begin / edge * edge; key0 < seen.end; key0 += edge) {
    std::int64_t const end = key0 + in_edge(p.keys - key0);
    if (last.begin <= key0 && first.end >= end) {
      body(query0, queries, key0, static_cast<int>(end - key0));
      continue;
    }
    for (int i = 0; i < queries; i += strip_rows) {
      int const rows = std::min(strip_rows, queries - i);
      auto const strip = p.visible(sample, query0 + i, rows);
      auto const from = std::max(strip.begin, key0), to = std::min(strip.end, end);
      if (from < to) body(query0 + i, rows, from, static_cast<int>(to - from));
    }
  }
}

/// Dropout factors of a tile's probabilities: keep(query, key).
template <class S>
void draw(Problem<S> const& p, std::int64_t sample, std::int64_t head, std::int64_t query0, int rows, std::int64_t key0,
          int keys, StridedMatrix<Acc<S>> keep) {
  for (int i = 0; i < rows; ++i) p.factors(sample, head, query0 + i, key0, keys, keep.row(i));
}

/// The block of keys and values that a tile works on, widened where elements are narrow.
template <class S>
struct KeyBlock {
  Problem<S> const& p;
  Acc<S>*const key_panel, *const value_panel;
  std::int64_t const sample, kv;
  std::int64_t key0 = -1;
  StridedMatrix<Acc<S> const> k{}, v{};

  KeyBlock(Problem<S> const& problem, Scratch<Acc<S>>& scratch, std::int64_t s, std::int64_t kv_head)
      : p(problem),
        key_panel(take_panel<S>(p, scratch, p.shape.head_dim)),
        value_panel(take_panel<S>(p, scratch, p.shape.values())),
        sample(s),
        kv(kv_head) {}
  /// Makes k and v the block that a key lies in.
  void move_to(TileTeam const& team, std::int64_t key) {
    auto const begin = key / edge * edge;
    if (begin == key0) return;  // the next strip of the same block
    key0 = begin;
    int const keys = in_edge(p.keys - key0);
    k = widened(team, keys, p.shape.head_dim, p.of_key(p.k, sample, key0, kv), key_panel);
    v = widened(team, keys, p.shape.values(), p.of_value(p.v, sample, key0, kv), value_panel);
  }
};

/// Caps the visible scores of a row (soft_cap), and writes the derivatives to `slope`, where it is given.
template <class T>
void cap_row(TileTeam const& team, T* row, KeyRange visible, T cap, T* slope) {
  T* const s = row + visible.begin;
  int const n = std::max(0, static_cast<int>(visible.end - visible.begin));
  tile_cols(team, n, [=](int j) { s[j] = soft_cap(s[j], cap); });
  if (slope) tile_cols(team, n, [=](int j) { slope[j] = soft_cap_slope(s[j], cap); });
}

/// The forward pass of one tile of queries of one head, by one thread: over blocks of keys with a running maximum and
/// sum (arXiv 2205.14135, algorithm 1).
template <class S, class O>
struct ForwardTile {
  using T = Acc<S>;
  Problem<S> p;
  std::int64_t tiles;  ///< tiles of queries of a head
  Store mode;
  StridedMatrix<O> out;
  View1<T> lse;
  std::size_t bytes;
  int level = 0;

  void operator()(TileTeam const& team) const {
    // The longest tiles come first, so that no thread starts a long one at the end.
    std::int64_t const query0 = (tiles - 1 - team.league_rank() % tiles) * edge;
    std::int64_t const head = team.league_rank() / tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), values = static_cast<int>(p.shape.values());
    int const queries = in_edge(p.queries - query0);
    T const cap = static_cast<T>(p.shape.softcap);
    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const score{scratch.take(edge * edge), edge};
    T* const top = scratch.take(edge);  // running maximum and sum of each row
    T* const sum = scratch.take(edge);
    StridedMatrix<T> const keep{p.dropout.active() ? scratch.take(edge * edge) : nullptr, edge};
    auto const place = p.of_output(out, sample, query0, head);
    auto const result = sums_of(values, place, take_panel<O>(p, scratch, values));
    auto const tile_q =
        widened(team, queries, dim, p.of_query(p.q, sample, query0, head), take_panel<S>(p, scratch, dim));
    KeyBlock<S> block(p, scratch, sample, p.kv_of(head));
    for (int i = 0; i < queries; ++i) {
      top[i] = mode == Store::add ? lse(p.statistic(sample, head, query0 + i)) : -infinity<T>;
      sum[i] = top[i] > -infinity<T> ? T(1) : T(0);
    }
    StartedStrips started(mode == Store::add);

    for_strips(p, sample, query0, queries, [&](std::int64_t strip0, int rows, std::int64_t key0, int keys) {
      block.move_to(team, key0);
      auto const q = tile_q.from(strip0 - query0, 0);
      auto const k = block.k.from(key0 - block.key0, 0), v = block.v.from(key0 - block.key0, 0);
      auto const y = result.from(strip0 - query0, 0);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, dim, static_cast<T>(p.shape.scale), q.data, q.stride, k.data,
                   k.stride, T(0), score.data, score.stride);
      if (keep.data) draw(p, sample, head, strip0, rows, key0, keys, keep);
      for (int i = 0; i < rows; ++i) {
        auto const visible = p.visible_in(sample, strip0 + i, key0, keys);
        if (cap > T(0)) cap_row<T>(team, score.row(i), visible, cap, nullptr);
        softmax_row(team, score.row(i), keep.data ? keep.row(i) : nullptr, visible, keys, top[strip0 - query0 + i],
                    sum[strip0 - query0 + i], y.row(i), values);
      }
      auto const beta = started.beta(static_cast<int>(strip0 - query0), rows, result, values);
      host_gemm<T>(Op::none, Op::none, rows, values, keys, T(1), score.data, score.stride, v.data, v.stride, beta,
                   y.data, y.stride);
    });
    started.finish(queries, result, values);
    for (int i = 0; i < queries; ++i) {
      T const* const yi = result.row(i);
      O* const stored = place.row(i);
      T const inverse = sum[i] > T(0) ? T(1) / sum[i] : T(1);
      tile_cols(team, values, [=](int d) { put(stored[d], yi[d] * inverse); });
      lse(p.statistic(sample, head, query0 + i)) = sum[i] > T(0) ? top[i] + std::log(sum[i]) : -infinity<T>;
    }
  }

  /// Turns the scores of one row into exp(score - top) for the visible keys, times their dropout factors. The sums from
  /// before shrink to the new maximum.
  static void softmax_row(TileTeam const& team, T* row, T const* keep_row, KeyRange visible, int keys, T& top, T& sum,
                          T* y, int dim) {
    int const begin = static_cast<int>(visible.begin), n = static_cast<int>(visible.end) - begin;
    for (int j = 0; j < (n > 0 ? begin : keys); ++j) row[j] = T(0);
    if (n <= 0) return;
    for (int j = begin + n; j < keys; ++j) row[j] = T(0);
    T* const s = row + begin;
    T const before = top;
    T const now = tile_col_max<T>(team, n, before, [=](int j) { return s[j]; });
    T const part = tile_col_sum<T>(team, n, [=](int j) { return s[j] = exp_of(s[j] - now); });
    if (keep_row) {
      T const* const keep = keep_row + begin;
      tile_cols(team, n, [=](int j) { s[j] *= keep[j]; });
    }
    bool const first = !(before > -infinity<T>);
    top = now;
    T const shrink = first ? T(0) : exp_of(before - now);
    sum = first ? part : sum * shrink + part;
    if (!first && shrink != T(1)) tile_cols(team, dim, [=](int d) { y[d] *= shrink; });
  }
};

/// The backward pass of all queries that use one kv head of one sample, by one thread, so that no two threads add to
/// one element of dk and dv. attention_gemm.cpp has the formulas; each block of scores is computed once, with five
/// GEMMs in all.
template <class S, class D>
struct BackwardHead {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> dout;
  View1<T const> lse, delta;
  Store mode_q, mode_kv;
  StridedMatrix<D> dq_all, dk_all, dv_all;
  std::size_t bytes;
  DeltaRows<S> makes{};  ///< computes delta, where it is not there yet
  int level = 0;

  void operator()(TileTeam const& team) const {
    auto const& shape = p.shape;
    std::int64_t const kv = team.league_rank() % shape.kv_heads, sample = team.league_rank() / shape.kv_heads;
    std::int64_t const group = shape.heads / shape.kv_heads, dim = shape.head_dim, values = shape.values();
    auto scratch = scratch_of<T>(team, level, bytes);  // only once: a second call would give the next piece
    StridedMatrix<D> const place[] = {p.of_key(dk_all, sample, 0, kv), p.of_value(dv_all, sample, 0, kv)};
    StridedMatrix<T> const dk = sums_of(dim, place[0], take_panel<D>(p, scratch, dim, p.keys));
    StridedMatrix<T> const dv = sums_of(values, place[1], take_panel<D>(p, scratch, values, p.keys));
    if (mode_kv == Store::overwrite) {
      fill_zero(dk, p.keys, dim);
      fill_zero(dv, p.keys, values);
    }
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (std::int64_t query0 = 0; query0 < p.queries; query0 += edge)
        tile(team, scratch, sample, head, kv, query0, dk, dv);
    round_into(team, p.keys, dim, dk, place[0]);
    round_into(team, p.keys, values, dv, place[1]);
  }

  void tile(TileTeam const& team, Scratch<T> scratch, std::int64_t sample, std::int64_t head, std::int64_t kv,
            std::int64_t query0, StridedMatrix<T> head_dk, StridedMatrix<T> head_dv) const {
    int const dim = static_cast<int>(p.shape.head_dim), values = static_cast<int>(p.shape.values());
    int const queries = in_edge(p.queries - query0);
    T const scale = static_cast<T>(p.shape.scale), cap = static_cast<T>(p.shape.softcap);
    if (makes.out.data) makes.make(team, p, sample, head, query0, queries);
    StridedMatrix<T> const score{scratch.take(edge * edge), edge}, dprob{scratch.take(edge * edge), edge};
    StridedMatrix<T> const keep{p.dropout.active() ? scratch.take(edge * edge) : nullptr, edge};
    T* const slope = cap > T(0) ? scratch.take(edge) : nullptr;
    auto const tile_q =
        widened(team, queries, dim, p.of_query(p.q, sample, query0, head), take_panel<S>(p, scratch, dim));
    auto const tile_dy =
        widened(team, queries, values, p.of_output(dout, sample, query0, head), take_panel<S>(p, scratch, values));
    auto const place = p.of_query(dq_all, sample, query0, head);
    auto const tile_dq = sums_of(dim, place, take_panel<D>(p, scratch, dim));
    StartedStrips started(mode_q == Store::add);
    KeyBlock<S> block(p, scratch, sample, kv);
    for_strips(p, sample, query0, queries, [&](std::int64_t strip0, int rows, std::int64_t key0, int keys) {
      block.move_to(team, key0);
      auto const q = tile_q.from(strip0 - query0, 0), dy = tile_dy.from(strip0 - query0, 0);
      auto const k = block.k.from(key0 - block.key0, 0), v = block.v.from(key0 - block.key0, 0);
      auto const dq = tile_dq.from(strip0 - query0, 0), dk = head_dk.from(key0, 0), dv = head_dv.from(key0, 0);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, dim, scale, q.data, q.stride, k.data, k.stride, T(0),
                   score.data, edge);
      host_gemm<T>(Op::none, Op::transpose, rows, keys, values, T(1), dy.data, dy.stride, v.data, v.stride, T(0),
                   dprob.data, edge);
      if (keep.data) draw(p, sample, head, strip0, rows, key0, keys, keep);
      for (int i = 0; i < rows; ++i) {
        auto const at = p.statistic(sample, head, strip0 + i);
        auto const visible = p.visible_in(sample, strip0 + i, key0, keys);
        if (slope) cap_row(team, score.row(i), visible, cap, slope);
        gradients_of_row(team, score.row(i), dprob.row(i), keep.data ? keep.row(i) : nullptr, visible, keys, lse(at),
                         delta(at), scale);
        if (slope) {
          T* const d = dprob.row(i) + visible.begin;
          tile_cols(team, static_cast<int>(visible.end - visible.begin), [=](int j) { d[j] *= slope[j]; });
        }
      }
      host_gemm<T>(Op::transpose, Op::none, keys, values, rows, T(1), score.data, edge, dy.data, dy.stride, T(1),
                   dv.data, dv.stride);
      host_gemm<T>(Op::transpose, Op::none, keys, dim, rows, T(1), dprob.data, edge, q.data, q.stride, T(1), dk.data,
                   dk.stride);
      auto const beta = started.beta(static_cast<int>(strip0 - query0), rows, tile_dq, dim);
      host_gemm<T>(Op::none, Op::none, rows, dim, keys, T(1), dprob.data, edge, k.data, k.stride, beta, dq.data,
                   dq.stride);
    });
    started.finish(queries, tile_dq, dim);
    round_into(team, queries, dim, tile_dq, place);
  }

  /// Turns the scores of one row into probabilities times their dropout factors, and gradients of probabilities into
  /// gradients of scores.
  static void gradients_of_row(TileTeam const& team, T* score, T* dprob, T const* keep, KeyRange visible, int keys,
                               T norm, T shift, T scale) {
    int const begin = static_cast<int>(visible.begin), n = std::max(0, static_cast<int>(visible.end) - begin);
    for (int j = 0; j < (n > 0 ? begin : keys); ++j) score[j] = dprob[j] = T(0);
    if (n == 0) return;
    for (int j = begin + n; j < keys; ++j) score[j] = dprob[j] = T(0);
    T* const s = score + begin;
    T* const d = dprob + begin;
    if (keep) {
      T const* const m = keep + begin;
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
  }
};

}  // namespace

template <class S, class O>
void blas::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                             AttentionScratch /*scratch*/, HeadRows<S const> q, HeadRows<S const> k,
                             HeadRows<S const> v, Store store, HeadRows<O> out, View1<Acc<S>> lse) {
  if constexpr (on_host) {  // in builds for devices nobody calls this form, and it compiles to nothing
    Problem<S> const p(shape, dropout, q, k, v);
    std::int64_t const tiles = (p.queries + edge - 1) / edge;
    linalg::SingleThreadedBlas const alone;  // the threads are Kokkos' here: each tile calls the BLAS by itself
    auto const bytes = scratch_bytes(p, dropout.active() ? 2 : 1, 2, 2 * (shape.head_dim + shape.values()));
    launch_tiles("p3d::kernels::attention_forward", exec, shape.samples * shape.heads * tiles,
                 ForwardTile<S, O>{p, tiles, store, matrix(out), lse, bytes});
  }
}

template <class S, class D>
void blas::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                              AttentionScratch /*scratch*/, HeadRows<S const> q, HeadRows<S const> k,
                              HeadRows<S const> v, HeadRows<S const> dout, View1<Acc<S> const> lse,
                              View1<Acc<S> const> delta, Store store_q, HeadRows<D> dq, Store store_kv, HeadRows<D> dk,
                              HeadRows<D> dv, WholeOutput<S> const& whole) {
  if constexpr (on_host) {
    Problem<S> const p(shape, dropout, q, k, v);
    bool const beside = p.template beside<D>;
    std::int64_t const dim = shape.head_dim, values = shape.values();
    auto const padded = [](std::int64_t n) { return Scratch<Acc<S>>::padded(n); };
    std::int64_t const head_sums = beside ? padded(p.keys * dim) + padded(p.keys * values) : 0;  // dk and dv
    linalg::SingleThreadedBlas const alone;  // the threads are Kokkos' here: each head calls the BLAS by itself
    launch_tiles("p3d::kernels::attention_backward", exec, shape.samples * shape.kv_heads,
                 BackwardHead<S, D>{p,
                                    matrix(dout),
                                    lse,
                                    delta,
                                    store_q,
                                    store_kv,
                                    matrix(dq),
                                    matrix(dk),
                                    matrix(dv),
                                    scratch_bytes(p, dropout.active() ? 3 : 2, shape.softcap > 0 ? 1 : 0,
                                                  3 * dim + 2 * values, head_sums),
                                    {matrix(whole.out), matrix(dout), whole.delta}});
  }
}

#define P3D_INSTANTIATE(S, D) P3D_INSTANTIATE_ATTENTION(blas::, S, D)
P3D_ATTENTION_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
