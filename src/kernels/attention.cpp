// SPDX-License-Identifier: Apache-2.0
// Attention as a portable kernel, and the choice between it and the form for the host (attention_blas.cpp).

#include "attention_problem.hpp"

#include <limits>

namespace p3d::kernels {

namespace {

/// One team: one tile of queries of one head, running over the tiles of keys up to the diagonal.
template <class S>
struct Forward {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S> out;
  View1<T> lse;
  std::size_t bytes;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % p.tiles * tile;
    std::int64_t const head = team.league_rank() / p.tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / p.tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = p.count(query0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const q = p.block(p.qkv, sample, query0, head);

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const keys_t{scratch.take(dim * tile), tile};
    StridedMatrix<T> const score = scratch.take_tile(), keep = scratch.take_tile();
    T* const top = scratch.take(tile);  // running maximum and sum of each row
    T* const sum = scratch.take(tile);
    auto const place = p.block(out, sample, query0, head);
    StridedMatrix<T> const y = p.sums_of(place, scratch);
    tile_rows(team, queries, [&](int i) {
      tile_once(team, [&] {
        top[i] = -infinity<T>;
        sum[i] = T(0);
      });
    });
    set_zero(team, queries, dim, y);

    for (std::int64_t key0 = 0; key0 <= query0; key0 += tile) {
      int const keys = p.count(key0);
      transpose(team, keys, dim, p.block(p.qkv, sample, key0, p.key_head(p.kv_of(head))), keys_t);
      set_zero(team, queries, tile, score);
      if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      tile_barrier(team);
      product(team, queries, tile, dim, q, keys_t, score);
      tile_barrier(team);
      tile_rows(team, queries, [&](int i) {
        T* const s = score.row(i);
        std::int64_t const causal = query0 + i - key0 + 1;
        int const valid = static_cast<int>(causal < keys ? causal : keys);
        T const before = top[i];
        T const now = tile_col_max<T>(team, valid, before, [=](int j) { return scale * s[j]; });
        T const shrink = exp_of(before - now);
        T const part = tile_col_sum<T>(team, valid, [=](int j) { return s[j] = exp_of(scale * s[j] - now); });
        tile_cols(team, tile - valid, [=](int j) { s[valid + j] = T(0); });
        if (p.dropout.active()) {
          T const* const k = keep.row(i);
          tile_cols(team, valid, [=](int j) { s[j] *= k[j]; });
        }
        if (key0 > 0) {
          T* const yi = y.row(i);
          tile_cols(team, dim, [=](int d) { yi[d] *= shrink; });
        }
        tile_once(team, [&] {
          top[i] = now;
          sum[i] = sum[i] * shrink + part;
        });
      });
      tile_barrier(team);
      product(team, queries, dim, keys, score, p.block(p.qkv, sample, key0, p.value_head(p.kv_of(head))), y);
      tile_barrier(team);
    }
    tile_rows(team, queries, [&](int i) {
      T const* const yi = y.row(i);
      S* const result = place.row(i);
      T const inverse = T(1) / sum[i];
      tile_cols(team, dim, [=](int d) { put(result[d], yi[d] * inverse); });
      tile_once(team, [&] { lse(p.lse_at(sample, head, query0 + i)) = top[i] + std::log(sum[i]); });
    });
  }
};

// Backward. With P = softmax of a row, M its dropout factors, D = M * (dout v^T) and delta = sum_j P_j D_j = dout .
// out:
//   dS = P * (D - delta) * scale,  dq = dS k,  dk = dS^T q,  dv = (P M)^T dout.
// Scores are computed again from lse. Queries and keys get a kernel each, so no two teams add to one element.

/// One team: one tile of queries of one head -> dq.
template <class S>
struct BackwardQueries {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> dout;
  View1<T const> lse, delta;
  StridedMatrix<S> dqkv;
  std::size_t bytes;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % p.tiles * tile;
    std::int64_t const head = team.league_rank() / p.tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / p.tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = p.count(query0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const q = p.block(p.qkv, sample, query0, head);
    auto const dy = p.block(dout, sample, query0, head);

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const keys_t{scratch.take(dim * tile), tile}, values_t{scratch.take(dim * tile), tile};
    StridedMatrix<T> const score = scratch.take_tile(), dprob = scratch.take_tile(), keep = scratch.take_tile();
    auto const place = p.block(dqkv, sample, query0, head);
    StridedMatrix<T> const dq = p.sums_of(place, scratch);
    set_zero(team, queries, dim, dq);

    for (std::int64_t key0 = 0; key0 <= query0; key0 += tile) {
      int const keys = p.count(key0);
      auto const k = p.block(p.qkv, sample, key0, p.key_head(p.kv_of(head)));
      auto const v = p.block(p.qkv, sample, key0, p.value_head(p.kv_of(head)));
      transpose(team, keys, dim, k, keys_t);
      transpose(team, keys, dim, v, values_t);
      set_zero(team, queries, tile, score);
      set_zero(team, queries, tile, dprob);
      if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      tile_barrier(team);
      product(team, queries, tile, dim, q, keys_t, score);
      product(team, queries, tile, dim, dy, values_t, dprob);
      tile_barrier(team);
      tile_rows(team, queries, [&](int i) {
        T* const s = score.row(i);
        T* const d = dprob.row(i);
        std::int64_t const causal = query0 + i - key0 + 1;
        int const valid = static_cast<int>(causal < keys ? causal : keys);
        T const norm = lse(p.lse_at(sample, head, query0 + i)), shift = delta(p.lse_at(sample, head, query0 + i));
        if (p.dropout.active()) {
          T const* const m = keep.row(i);
          tile_cols(team, valid, [=](int j) { d[j] *= m[j]; });
        }
        tile_cols(team, valid, [=](int j) { s[j] = exp_of(scale * s[j] - norm) * (d[j] - shift) * scale; });
        tile_cols(team, tile - valid, [=](int j) { s[valid + j] = T(0); });
      });
      tile_barrier(team);
      product(team, queries, dim, keys, score, k, dq);
      tile_barrier(team);
    }
    p.store(team, queries, dq, place);
  }
};

/// One team: one tile of keys of one kv head -> dk, dv, over the query heads that share it and the query tiles from the
/// diagonal on. Score tiles are transposed: [key, query].
template <class S>
struct BackwardKeys {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> dout;
  View1<T const> lse, delta;
  StridedMatrix<S> dqkv;
  std::size_t bytes;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const key0 = team.league_rank() % p.tiles * tile;
    std::int64_t const kv = team.league_rank() / p.tiles % p.shape.kv_heads;
    std::int64_t const sample = team.league_rank() / p.tiles / p.shape.kv_heads;
    std::int64_t const group = p.shape.heads / p.shape.kv_heads;
    int const dim = static_cast<int>(p.shape.head_dim), keys = p.count(key0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const k = p.block(p.qkv, sample, key0, p.key_head(kv));
    auto const v = p.block(p.qkv, sample, key0, p.value_head(kv));

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const queries_t{scratch.take(dim * tile), tile}, dout_t{scratch.take(dim * tile), tile};
    StridedMatrix<T> const score = scratch.take_tile(), dprob = scratch.take_tile(), keep = scratch.take_tile();
    auto const key_place = p.block(dqkv, sample, key0, p.key_head(kv));
    auto const value_place = p.block(dqkv, sample, key0, p.value_head(kv));
    StridedMatrix<T> const dk = p.sums_of(key_place, scratch), dv = p.sums_of(value_place, scratch);
    set_zero(team, keys, dim, dk);
    set_zero(team, keys, dim, dv);

    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (std::int64_t query0 = key0; query0 < p.shape.rows.seq_len; query0 += tile) {
        int const queries = p.count(query0);
        auto const q = p.block(p.qkv, sample, query0, head);
        auto const dy = p.block(dout, sample, query0, head);
        transpose(team, queries, dim, q, queries_t);
        transpose(team, queries, dim, dy, dout_t);
        set_zero(team, keys, tile, score);
        set_zero(team, keys, tile, dprob);
        if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, true, keep);
        tile_barrier(team);
        product(team, keys, tile, dim, k, queries_t, score);
        product(team, keys, tile, dim, v, dout_t, dprob);
        tile_barrier(team);
        T const* const norm = &lse(p.lse_at(sample, head, query0));
        T const* const shift = &delta(p.lse_at(sample, head, query0));
        tile_rows(team, keys, [&](int i) {
          T* const s = score.row(i);
          T* const d = dprob.row(i);
          // Queries before the key do not see it.
          std::int64_t const hidden = key0 + i - query0;
          int const begin = static_cast<int>(hidden < 0 ? 0 : (hidden < queries ? hidden : queries));
          tile_cols(team, begin, [=](int j) { s[j] = d[j] = T(0); });
          if (p.dropout.active()) {
            T const* const m = keep.row(i);
            tile_cols(team, queries - begin, [=](int n) {
              int const j = begin + n;
              T const prob = exp_of(scale * s[j] - norm[j]);
              s[j] = prob * m[j];
              d[j] = prob * (d[j] * m[j] - shift[j]) * scale;
            });
          } else {
            tile_cols(team, queries - begin, [=](int n) {
              int const j = begin + n;
              s[j] = exp_of(scale * s[j] - norm[j]);
              d[j] = s[j] * (d[j] - shift[j]) * scale;
            });
          }
        });
        tile_barrier(team);
        product(team, keys, dim, queries, score, dy, dv);
        product(team, keys, dim, queries, dprob, q, dk);
        tile_barrier(team);
      }
    p.store(team, keys, dk, key_place);
    p.store(team, keys, dv, value_place);
  }
};

}  // namespace

template <class S>
void portable::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                 View2<S const> qkv, View2<S> out, View1<Acc<S>> lse) {
  Problem<S> const p(shape, dropout, qkv);
  launch_tiles(
      "p3d::kernels::attention_forward", exec, shape.rows.samples * shape.heads * p.tiles,
      Forward<S>{
          p, {out.data(), static_cast<std::int64_t>(out.stride(0))}, lse, p.scratch_bytes(p.narrow ? 2 : 1, 2, 2)});
}

template <class S>
void portable::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                  View2<S const> qkv, View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout,
                                  View2<S> dqkv, View1<Acc<S>> delta) {
  Problem<S> const p(shape, dropout, qkv);
  std::int64_t const heads = shape.heads, dim = shape.head_dim, seq = shape.rows.seq_len;
  for_rows(
      "p3d::kernels::attention_delta", exec, shape.rows.rows() * heads,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t i) {
        std::int64_t const row = i / heads, head = i % heads;
        S const* const y = &out(row, head * dim);
        S const* const dy = &dout(row, head * dim);
        auto const sum = sum_of<Acc<S>>(team, dim, [=](std::int64_t d) { return y[d] * dy[d]; });
        once(team, [&] { delta((row / seq * heads + head) * seq + row % seq) = sum; });
      });
  StridedMatrix<S const> const dy{dout.data(), static_cast<std::int64_t>(dout.stride(0))};
  StridedMatrix<S> const d{dqkv.data(), static_cast<std::int64_t>(dqkv.stride(0))};
  launch_tiles("p3d::kernels::attention_backward_queries", exec, shape.rows.samples * heads * p.tiles,
               BackwardQueries<S>{p, dy, lse, delta, d, p.scratch_bytes(p.narrow ? 3 : 2, 3, 0)});
  launch_tiles("p3d::kernels::attention_backward_keys", exec, shape.rows.samples * shape.kv_heads * p.tiles,
               BackwardKeys<S>{p, dy, lse, delta, d, p.scratch_bytes(p.narrow ? 4 : 2, 3, 0)});
}

std::int64_t attention_workspace(AttentionShape const& shape) { return shape.rows.rows() * shape.heads; }

std::int64_t attention_panel_bytes(AttentionShape const& shape) {
  return on_host ? 2 * shape.rows.seq_len * shape.head_dim * static_cast<std::int64_t>(sizeof(float)) : 0;
}

template <class S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                       View2<S> out, View1<Acc<S>> lse, View1<Acc<S>>) {
  if constexpr (on_host)
    blas::attention_forward<S>(exec, shape, dropout, qkv, out, lse);
  else
    portable::attention_forward<S>(exec, shape, dropout, qkv, out, lse);
}

template <class S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                        View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout, View2<S> dqkv,
                        View1<Acc<S>> workspace) {
  P3D_REQUIRE(static_cast<std::int64_t>(workspace.extent(0)) >= attention_workspace(shape),
              "attention workspace too small");
  if constexpr (on_host)
    blas::attention_backward<S>(exec, shape, dropout, qkv, out, lse, dout, dqkv);
  else
    portable::attention_backward<S>(exec, shape, dropout, qkv, out, lse, dout, dqkv, workspace);
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void portable::attention_forward<S>(ExecSpace const&, AttentionShape const&, Dropout const&,              \
                                               View2<S const>, View2<S>, View1<Acc<S>>);                             \
  template void portable::attention_backward<S>(ExecSpace const&, AttentionShape const&, Dropout const&,             \
                                                View2<S const>, View2<S const>, View1<Acc<S> const>, View2<S const>, \
                                                View2<S>, View1<Acc<S>>);                                            \
  template void attention_forward<S>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<S const>,        \
                                     View2<S>, View1<Acc<S>>, View1<Acc<S>>);                                        \
  template void attention_backward<S>(ExecSpace const&, AttentionShape const&, Dropout const&, View2<S const>,       \
                                      View2<S const>, View1<Acc<S> const>, View2<S const>, View2<S>, View1<Acc<S>>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
