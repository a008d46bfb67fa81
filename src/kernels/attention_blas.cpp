// Attention on the host. The products of a tile go to the BLAS, which reads queries, keys and values where they lie; between
// them each row of scores is walked once, in cache. Work above the diagonal is left out by tiles: at most half a tile of
// queries for each row is done in vain.

#include "attention_problem.hpp"

#include <p3d/linalg/host_blas.hpp>

#include <algorithm>
#include <limits>

namespace p3d::kernels {

namespace {

using linalg::host_gemm;
using linalg::Op;

/// Keys of a score tile. Tall and wide tiles give the BLAS long runs; two of them must stay in a core's second-level cache.
constexpr std::int64_t key_tile = 256;
/// Queries of a score tile, a divisor of key_tile: short sequences lose more above the diagonal.
std::int64_t query_tile(std::int64_t seq_len) { return seq_len < 512 ? 64 : 128; }

/// A problem cut into query tiles, and the part of a row that its query may see.
template <class T>
struct Tiled {
  Problem<T> p;
  std::int64_t edge, tiles;

  explicit Tiled(Problem<T> const& problem)
      : p(problem), edge(query_tile(p.shape.rows.seq_len)), tiles((p.shape.rows.seq_len + edge - 1) / edge) {}

  int queries(std::int64_t query0) const { return static_cast<int>(std::min(edge, p.shape.rows.seq_len - query0)); }
  /// Keys [key0, key0 + keys) of the tile, when queries end at `end`.
  static int keys(std::int64_t key0, std::int64_t end) { return static_cast<int>(std::min(key_tile, end - key0)); }
  static int visible(std::int64_t query, std::int64_t key0, int keys) {
    return static_cast<int>(std::min<std::int64_t>(keys, query - key0 + 1));
  }
  std::int64_t tile_elements() const { return edge * key_tile; }
  /// Scratch of one thread, in elements and in the bytes that scratch_of wants.
  static std::size_t bytes(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(T) + 64; }
};

/// One thread: one tile of queries of one head, over blocks of keys with a running maximum and sum (arXiv 2205.14135,
/// algorithm 1).
template <class T>
struct ForwardTile {
  Tiled<T> t;
  Block<T> out;
  View1<T> lse;
  std::size_t bytes;
  int level = 0;

  static std::int64_t elements(Tiled<T> const& t) {
    return (t.p.dropout.active() ? 2 : 1) * t.tile_elements() + 2 * Scratch<T>::padded(t.edge);
  }

  void operator()(TileTeam const& team) const {
    auto const& p = t.p;
    // The longest tiles first.
    std::int64_t const query0 = (t.tiles - 1 - team.league_rank() % t.tiles) * t.edge;
    std::int64_t const head = team.league_rank() / t.tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / t.tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = t.queries(query0);
    std::int64_t const end = query0 + queries;
    auto const q = p.block(p.qkv, sample, query0, head);
    auto const y = p.block(out, sample, query0, head);

    auto scratch = scratch_of<T>(team, level, bytes);
    Block<T> const score{scratch.take(t.tile_elements()), key_tile};
    T* const top = scratch.take(t.edge);  // running maximum and sum of each row
    T* const sum = scratch.take(t.edge);
    Block<T> const keep{p.dropout.active() ? scratch.take(t.tile_elements()) : nullptr, key_tile};

    for (std::int64_t key0 = 0; key0 < end; key0 += key_tile) {
      int const keys = t.keys(key0, end);
      bool const first = key0 == 0;
      auto const k = p.block(p.qkv, sample, key0, p.key_head(p.kv_of(head)));
      auto const v = p.block(p.qkv, sample, key0, p.value_head(p.kv_of(head)));
      host_gemm<T>(Op::none, Op::transpose, queries, keys, dim, static_cast<T>(p.shape.scale), q.data, q.stride, k.data,
                   k.stride, T(0), score.data, score.stride);
      if (keep.data) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      for (int i = 0; i < queries; ++i) {
        T* const s = score.row(i);
        int const n = t.visible(query0 + i, key0, keys);
        T const before = first ? -std::numeric_limits<T>::infinity() : top[i];
        T const now = tile_col_max<T>(team, n, before, [=](int j) { return s[j]; });
        T const part = tile_col_sum<T>(team, n, [=](int j) { return s[j] = exp_of(s[j] - now); });
        for (int j = n; j < keys; ++j) s[j] = T(0);
        if (keep.data) {
          T const* const m = keep.row(i);
          tile_cols(team, n, [=](int j) { s[j] *= m[j]; });
        }
        top[i] = now;
        if (first) {
          sum[i] = part;
          continue;
        }
        T const shrink = exp_of(before - now);
        sum[i] = sum[i] * shrink + part;
        T* const yi = y.row(i);
        tile_cols(team, dim, [=](int d) { yi[d] *= shrink; });
      }
      host_gemm<T>(Op::none, Op::none, queries, dim, keys, T(1), score.data, score.stride, v.data, v.stride,
                   first ? T(0) : T(1), y.data, y.stride);
    }
    for (int i = 0; i < queries; ++i) {
      T* const yi = y.row(i);
      T const inverse = T(1) / sum[i];
      tile_cols(team, dim, [=](int d) { yi[d] *= inverse; });
      lse(p.lse_at(sample, head, query0 + i)) = top[i] + std::log(sum[i]);
    }
  }
};

/// One thread: all queries that use one kv head of one sample, so no two threads add to one element of dk and dv. The
/// formulas stand in attention.cpp; each block of scores is made once, five products in all.
template <class T>
struct BackwardHead {
  Tiled<T> t;
  Block<T const> out, dout;
  View1<T const> lse;
  Block<T> dqkv;
  std::size_t bytes;
  int level = 0;

  static std::int64_t elements(Tiled<T> const& t) {
    return (t.p.dropout.active() ? 3 : 2) * t.tile_elements() + Scratch<T>::padded(t.edge);
  }

  void operator()(TileTeam const& team) const {
    auto const& shape = t.p.shape;
    std::int64_t const kv = team.league_rank() % shape.kv_heads, sample = team.league_rank() / shape.kv_heads;
    std::int64_t const group = shape.heads / shape.kv_heads;
    for (std::int64_t part : {t.p.key_head(kv), t.p.value_head(kv)}) {
      auto const d = t.p.block(dqkv, sample, 0, part);
      for (std::int64_t i = 0; i < shape.rows.seq_len; ++i) std::fill_n(d.row(i), shape.head_dim, T(0));
    }
    auto const scratch = scratch_of<T>(team, level, bytes);  // once: asking again gives the next piece
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (std::int64_t query0 = 0; query0 < shape.rows.seq_len; query0 += t.edge)
        tile(team, scratch, sample, head, kv, query0);
  }

  void tile(TileTeam const& team, Scratch<T> scratch, std::int64_t sample, std::int64_t head, std::int64_t kv,
            std::int64_t query0) const {
    auto const& p = t.p;
    int const dim = static_cast<int>(p.shape.head_dim), queries = t.queries(query0);
    std::int64_t const end = query0 + queries;
    T const scale = static_cast<T>(p.shape.scale);
    auto const q = p.block(p.qkv, sample, query0, head);
    auto const y = p.block(out, sample, query0, head), dy = p.block(dout, sample, query0, head);
    auto const dq = p.block(dqkv, sample, query0, head);

    Block<T> const score{scratch.take(t.tile_elements()), key_tile}, dprob{scratch.take(t.tile_elements()), key_tile};
    T* const delta = scratch.take(t.edge);
    Block<T> const keep{p.dropout.active() ? scratch.take(t.tile_elements()) : nullptr, key_tile};
    for (int i = 0; i < queries; ++i) {
      T const* const a = y.row(i);
      T const* const b = dy.row(i);
      delta[i] = tile_col_sum<T>(team, dim, [=](int d) { return a[d] * b[d]; });
    }
    for (std::int64_t key0 = 0; key0 < end; key0 += key_tile) {
      int const keys = t.keys(key0, end);
      auto const k = p.block(p.qkv, sample, key0, p.key_head(kv)), v = p.block(p.qkv, sample, key0, p.value_head(kv));
      auto const dk = p.block(dqkv, sample, key0, p.key_head(kv)), dv = p.block(dqkv, sample, key0, p.value_head(kv));
      host_gemm<T>(Op::none, Op::transpose, queries, keys, dim, scale, q.data, q.stride, k.data, k.stride, T(0), score.data,
                   score.stride);
      host_gemm<T>(Op::none, Op::transpose, queries, keys, dim, T(1), dy.data, dy.stride, v.data, v.stride, T(0), dprob.data,
                   dprob.stride);
      if (keep.data) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      for (int i = 0; i < queries; ++i) {
        T* const s = score.row(i);
        T* const d = dprob.row(i);
        int const n = t.visible(query0 + i, key0, keys);
        T const norm = lse(p.lse_at(sample, head, query0 + i)), shift = delta[i];
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
      host_gemm<T>(Op::transpose, Op::none, keys, dim, queries, T(1), score.data, score.stride, dy.data, dy.stride, T(1),
                   dv.data, dv.stride);
      host_gemm<T>(Op::transpose, Op::none, keys, dim, queries, T(1), dprob.data, dprob.stride, q.data, q.stride, T(1), dk.data,
                   dk.stride);
      host_gemm<T>(Op::none, Op::none, queries, dim, keys, T(1), dprob.data, dprob.stride, k.data, k.stride,
                   key0 == 0 ? T(0) : T(1), dq.data, dq.stride);
    }
  }
};

template <class Functor>
void launch(std::string const& label, ExecSpace const& exec, std::int64_t teams, Functor functor) {
  if (teams == 0) return;
  linalg::SingleThreadedBlas const alone;  // the threads are Kokkos' here
  auto const policy = tile_policy(exec, teams, functor.bytes, functor.level);
  Kokkos::parallel_for(label, policy, functor);
}

}  // namespace

template <class T>
void blas::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<T const> qkv,
                             View2<T> out, View1<T> lse) {
  if constexpr (on_host) {  // elsewhere this compiles to nothing and nobody calls it
    Tiled<T> const t(Problem<T>(shape, dropout, qkv));
    Block<T> const y{out.data(), static_cast<std::int64_t>(out.stride(0))};
    launch("p3d::kernels::attention_forward", exec, shape.rows.samples * shape.heads * t.tiles,
           ForwardTile<T>{t, y, lse, t.bytes(ForwardTile<T>::elements(t))});
  }
}

template <class T>
void blas::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<T const> qkv,
                              View2<T const> out, View1<T const> lse, View2<T const> dout, View2<T> dqkv) {
  if constexpr (on_host) {
    Tiled<T> const t(Problem<T>(shape, dropout, qkv));
    auto const block = [](auto const& m) { return Block{m.data(), static_cast<std::int64_t>(m.stride(0))}; };
    launch("p3d::kernels::attention_backward", exec, shape.rows.samples * shape.kv_heads,
           BackwardHead<T>{t, block(out), block(dout), lse, block(dqkv), t.bytes(BackwardHead<T>::elements(t))});
  }
}

#define P3D_INSTANTIATE(T)                                                                                               \
  template void blas::attention_forward<T>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<T const>,      \
                                           View2<T>, View1<T>);                                                          \
  template void blas::attention_backward<T>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<T const>,     \
                                            View2<T const>, View1<T const>, View2<T const>, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)

}  // namespace p3d::kernels
