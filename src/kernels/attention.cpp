// SPDX-License-Identifier: Apache-2.0
// Attention as a portable kernel, and the choice between it and the form for the host (attention_blas.cpp).

#include <p3d/device/environment.hpp>

#include <limits>
#include <optional>

#include "attention_fused.hpp"
#include "attention_problem.hpp"

namespace p3d::kernels {

namespace {

/// One team: one tile of queries of one head, running over the tiles of keys that they see.
template <class S, class O>
struct Forward {
  using T = Acc<S>;
  Problem<S> p;
  Store mode;
  StridedMatrix<O> out;
  View1<T> lse;
  std::size_t bytes;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % p.query_tiles * p.tile;
    std::int64_t const head = team.league_rank() / p.query_tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / p.query_tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = p.queries_in(query0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const q = p.of_query(p.q, sample, query0, head);

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const k = scratch.take(p.tile, dim), v = scratch.take(p.tile, dim);
    StridedMatrix<T> const score = scratch.take(p.tile, p.tile), keep = scratch.take(p.tile, p.tile);
    T* const top = scratch.take(p.tile);  // running maximum and sum of each row
    T* const sum = scratch.take(p.tile);
    auto const place = p.of_query(out, sample, query0, head);
    StridedMatrix<T> const y = p.sums_of(place, scratch);
    bool const adds = mode == Store::add;
    tile_rows(team, queries, [&](int i) {
      tile_once(team, [&] {
        top[i] = adds ? lse(p.statistic(sample, head, query0 + i)) : -infinity<T>;
        sum[i] = top[i] > -infinity<T> ? T(1) : T(0);
      });
    });
    if (!adds) set_zero(team, queries, dim, y);
    tile_barrier(team);  // there may be no tile of keys, whose barriers come before the end's reads

    auto const seen = p.visible(sample, query0, queries);
    for (std::int64_t key0 = seen.begin / p.tile * p.tile; key0 < seen.end; key0 += p.tile) {
      int const keys = p.keys_in(key0);
      convert_tile(team, keys, dim, p.of_key(p.k, sample, key0, p.kv_of(head)), k);
      convert_tile(team, keys, dim, p.of_key(p.v, sample, key0, p.kv_of(head)), v);
      if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      tile_barrier(team);
      product<Product::overwrite_transposed>(team, queries, keys, dim, q, k, score);
      tile_barrier(team);
      tile_rows(team, queries, [&](int i) {
        auto const range = p.visible_in(sample, query0 + i, key0, keys);
        int const begin = static_cast<int>(range.begin), n = static_cast<int>(range.end) - begin;
        T* const row = score.row(i);
        tile_cols(team, n > 0 ? begin : keys, [=](int j) { row[j] = T(0); });
        if (n <= 0) return;
        tile_cols(team, keys - begin - n, [=](int j) { row[begin + n + j] = T(0); });
        T* const s = row + begin;
        T const before = top[i];
        T const now = tile_col_max<T>(team, n, before, [=](int j) { return scale * s[j]; });
        T const shrink = exp_of(before - now);
        T const part = tile_col_sum<T>(team, n, [=](int j) { return s[j] = exp_of(scale * s[j] - now); });
        if (p.dropout.active()) {
          T const* const factor = keep.row(i) + begin;
          tile_cols(team, n, [=](int j) { s[j] *= factor[j]; });
        }
        if (before > -infinity<T>) {
          T* const yi = y.row(i);
          tile_cols(team, dim, [=](int d) { yi[d] *= shrink; });
        }
        tile_once(team, [&] {
          top[i] = now;
          sum[i] = sum[i] * shrink + part;
        });
      });
      tile_barrier(team);
      product<Product::add>(team, queries, dim, keys, score, v, y);
      tile_barrier(team);
    }
    tile_rows(team, queries, [&](int i) {
      T const* const yi = y.row(i);
      O* const result = place.row(i);
      T const inverse = sum[i] > T(0) ? T(1) / sum[i] : T(1);
      tile_cols(team, dim, [=](int d) { put(result[d], yi[d] * inverse); });
      tile_once(team, [&] {
        lse(p.statistic(sample, head, query0 + i)) = sum[i] > T(0) ? top[i] + std::log(sum[i]) : -infinity<T>;
      });
    });
  }
};

// Backward. With P = softmax of a row, M its dropout factors, D = M * (dout v^T) and delta = sum_j P_j D_j = dout .
// out:
//   dS = P * (D - delta) * scale,  dq = dS k,  dk = dS^T q,  dv = (P M)^T dout.
// Scores are computed again from lse. Queries and keys get a kernel each, so no two teams add to one element.

/// One team: one tile of queries of one head -> dq.
template <class S, class D>
struct BackwardQueries {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> dout;
  View1<T const> lse, delta;
  Store mode;
  StridedMatrix<D> dq_all;
  std::size_t bytes;
  DeltaRows<S> makes{};  ///< delta, where it is not there yet
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % p.query_tiles * p.tile;
    std::int64_t const head = team.league_rank() / p.query_tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / p.query_tiles / p.shape.heads;
    int const dim = static_cast<int>(p.shape.head_dim), queries = p.queries_in(query0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const q = p.of_query(p.q, sample, query0, head);
    auto const dy = p.of_query(dout, sample, query0, head);

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const k = scratch.take(p.tile, dim), v = scratch.take(p.tile, dim);
    StridedMatrix<T> const score = scratch.take(p.tile, p.tile), dprob = scratch.take(p.tile, p.tile),
                           keep = scratch.take(p.tile, p.tile);
    auto const place = p.of_query(dq_all, sample, query0, head);
    StridedMatrix<T> const dq = p.sums_of(place, scratch);
    if (mode == Store::overwrite) set_zero(team, queries, dim, dq);
    if (makes.out.data) makes.make(team, p, sample, head, query0, queries);
    tile_barrier(team);

    auto const seen = p.visible(sample, query0, queries);
    for (std::int64_t key0 = seen.begin / p.tile * p.tile; key0 < seen.end; key0 += p.tile) {
      int const keys = p.keys_in(key0);
      convert_tile(team, keys, dim, p.of_key(p.k, sample, key0, p.kv_of(head)), k);
      convert_tile(team, keys, dim, p.of_key(p.v, sample, key0, p.kv_of(head)), v);
      if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, false, keep);
      tile_barrier(team);
      product<Product::overwrite_transposed>(team, queries, keys, dim, q, k, score);
      product<Product::overwrite_transposed>(team, queries, keys, dim, dy, v, dprob);
      tile_barrier(team);
      tile_rows(team, queries, [&](int i) {
        auto const range = p.visible_in(sample, query0 + i, key0, keys);
        int const begin = static_cast<int>(range.begin), n = static_cast<int>(range.end) - begin;
        T* const row = score.row(i);
        tile_cols(team, n > 0 ? begin : keys, [=](int j) { row[j] = T(0); });
        if (n <= 0) return;
        tile_cols(team, keys - begin - n, [=](int j) { row[begin + n + j] = T(0); });
        T* const s = row + begin;
        T* const d = dprob.row(i) + begin;
        auto const at = p.statistic(sample, head, query0 + i);
        T const norm = lse(at), shift = delta(at);
        if (p.dropout.active()) {
          T const* const m = keep.row(i) + begin;
          tile_cols(team, n, [=](int j) { d[j] *= m[j]; });
        }
        tile_cols(team, n, [=](int j) { s[j] = exp_of(scale * s[j] - norm) * (d[j] - shift) * scale; });
      });
      tile_barrier(team);
      product<Product::add>(team, queries, dim, keys, score, k, dq);
      tile_barrier(team);
    }
    p.store(team, queries, dq, place);
  }
};

/// One team: one tile of keys of one kv head -> dk, dv, over the query heads that share it and the tiles of queries
/// that see it. Score tiles are transposed: [key, query].
template <class S, class D>
struct BackwardKeys {
  using T = Acc<S>;
  Problem<S> p;
  StridedMatrix<S const> dout;
  View1<T const> lse, delta;
  Store mode;
  StridedMatrix<D> dk_all, dv_all;
  std::size_t bytes;
  int level = 0;

  /// Of `queries` queries from query0 on those that see a key, from query0: a row of them, as both ends of what a query
  /// sees ascend.
  KOKKOS_INLINE_FUNCTION KeyRange seeing(std::int64_t sample, std::int64_t key, std::int64_t query0,
                                         int queries) const {
    std::int64_t begin = p.shape.queries.below(p.shape.keys.at(key)) - query0;
    begin = begin < 0 ? 0 : (begin < queries ? begin : queries);
    std::int64_t end = queries;
    if (p.shape.documents.extent(0) > 0 || p.shape.window > 0)
      while (end > begin && p.visible(sample, query0 + end - 1).begin > key) --end;
    return {begin, end};
  }

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const key0 = team.league_rank() % p.key_tiles * p.tile;
    std::int64_t const kv = team.league_rank() / p.key_tiles % p.shape.kv_heads;
    std::int64_t const sample = team.league_rank() / p.key_tiles / p.shape.kv_heads;
    std::int64_t const group = p.shape.heads / p.shape.kv_heads;
    int const dim = static_cast<int>(p.shape.head_dim), keys = p.keys_in(key0);
    T const scale = static_cast<T>(p.shape.scale);
    auto const k = p.of_key(p.k, sample, key0, kv);
    auto const v = p.of_key(p.v, sample, key0, kv);

    auto scratch = scratch_of<T>(team, level, bytes);
    StridedMatrix<T> const q = scratch.take(p.tile, dim), dy = scratch.take(p.tile, dim);
    StridedMatrix<T> const score = scratch.take(p.tile, p.tile), dprob = scratch.take(p.tile, p.tile),
                           keep = scratch.take(p.tile, p.tile);
    auto const key_place = p.of_key(dk_all, sample, key0, kv);
    auto const value_place = p.of_key(dv_all, sample, key0, kv);
    StridedMatrix<T> const dk = p.sums_of(key_place, scratch), dv = p.sums_of(value_place, scratch);
    if (mode == Store::overwrite) {
      set_zero(team, keys, dim, dk);
      set_zero(team, keys, dim, dv);
    }

    std::int64_t const first_query = p.shape.queries.below(p.shape.keys.at(key0));
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (std::int64_t query0 = first_query / p.tile * p.tile; query0 < p.queries; query0 += p.tile) {
        if (p.visible(sample, query0).begin >= key0 + keys) break;  // nor do later ones
        int const queries = p.queries_in(query0);
        convert_tile(team, queries, dim, p.of_query(p.q, sample, query0, head), q);
        convert_tile(team, queries, dim, p.of_query(dout, sample, query0, head), dy);
        if (p.dropout.active()) p.keep(team, sample, head, query0, queries, key0, keys, true, keep);
        tile_barrier(team);
        product<Product::overwrite_transposed>(team, keys, queries, dim, k, q, score);
        product<Product::overwrite_transposed>(team, keys, queries, dim, v, dy, dprob);
        tile_barrier(team);
        T const* const norm_all = &lse(p.statistic(sample, head, query0));
        T const* const shift_all = &delta(p.statistic(sample, head, query0));
        tile_rows(team, keys, [&](int i) {
          auto const range = seeing(sample, key0 + i, query0, queries);
          int const begin = static_cast<int>(range.begin), n = static_cast<int>(range.end) - begin;
          T* const s_all = score.row(i);
          T* const d_all = dprob.row(i);
          tile_cols(team, begin, [=](int j) { s_all[j] = d_all[j] = T(0); });
          tile_cols(team, queries - begin - n, [=](int j) { s_all[begin + n + j] = d_all[begin + n + j] = T(0); });
          T* const s = s_all + begin;
          T* const d = d_all + begin;
          T const* const norm = norm_all + begin;
          T const* const shift = shift_all + begin;
          if (p.dropout.active()) {
            T const* const m = keep.row(i) + begin;
            tile_cols(team, n, [=](int j) {
              T const prob = exp_of(scale * s[j] - norm[j]);
              s[j] = prob * m[j];
              d[j] = prob * (d[j] * m[j] - shift[j]) * scale;
            });
          } else {
            tile_cols(team, n, [=](int j) {
              s[j] = exp_of(scale * s[j] - norm[j]);
              d[j] = s[j] * (d[j] - shift[j]) * scale;
            });
          }
        });
        tile_barrier(team);
        product<Product::add>(team, keys, dim, queries, score, dy, dv);
        product<Product::add>(team, keys, dim, queries, dprob, q, dk);
        tile_barrier(team);
      }
    p.store(team, keys, dk, key_place);
    p.store(team, keys, dv, value_place);
  }
};

/// One team: one tile of queries of one head.
template <class S>
struct Delta {
  Problem<S> p;
  DeltaRows<S> rows;
  std::size_t bytes = 64;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const query0 = team.league_rank() % p.query_tiles * p.tile;
    std::int64_t const head = team.league_rank() / p.query_tiles % p.shape.heads;
    std::int64_t const sample = team.league_rank() / p.query_tiles / p.shape.heads;
    rows.make(team, p, sample, head, query0, p.queries_in(query0));
  }
};

}  // namespace

template <class S, class O>
void portable::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                 AttentionScratch /*scratch*/, HeadRows<S const> q, HeadRows<S const> k,
                                 HeadRows<S const> v, Store store, HeadRows<O> out, View1<Acc<S>> lse) {
  Problem<S> p(shape, dropout, q, k, v);
  std::size_t const bytes = p.fit(p.template beside<O> ? 3 : 2, 2, 2);
  launch_tiles("p3d::kernels::attention_forward", exec, shape.samples * shape.heads * p.query_tiles,
               Forward<S, O>{p, store, matrix(out), lse, bytes});
}

template <class S, class D>
void portable::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                  AttentionScratch /*scratch*/, HeadRows<S const> q, HeadRows<S const> k,
                                  HeadRows<S const> v, HeadRows<S const> dout, View1<Acc<S> const> lse,
                                  View1<Acc<S> const> delta, Store store_q, HeadRows<D> dq, Store store_kv,
                                  HeadRows<D> dk, HeadRows<D> dv, WholeOutput<S> const& whole) {
  Problem<S> p(shape, dropout, q, k, v);
  bool const beside = p.template beside<D>;
  DeltaRows<S> const makes{matrix(whole.out), matrix(dout), whole.delta};
  std::size_t const bytes = p.fit(beside ? 3 : 2, 3, 0);
  launch_tiles("p3d::kernels::attention_backward_queries", exec, shape.samples * shape.heads * p.query_tiles,
               BackwardQueries<S, D>{p, matrix(dout), lse, delta, store_q, matrix(dq), bytes, makes});
  std::size_t const bytes_of_keys = p.fit(beside ? 4 : 2, 3, 0);
  launch_tiles("p3d::kernels::attention_backward_keys", exec, shape.samples * shape.kv_heads * p.key_tiles,
               BackwardKeys<S, D>{p, matrix(dout), lse, delta, store_kv, matrix(dk), matrix(dv), bytes_of_keys});
}

template <class S>
std::int64_t attention_scratch_bytes(AttentionShape const& largest) {
  P3D_REQUIRE(largest.kv_heads > 0 && largest.heads % largest.kv_heads == 0, "kv_heads must divide heads");
  return 0;
}

std::int64_t attention_panel_bytes(AttentionShape const& shape) {
  return on_host ? 2 * shape.keys.size() * shape.head_dim * static_cast<std::int64_t>(sizeof(float)) : 0;
}

template <class S>
void attention_delta(ExecSpace const& exec, AttentionShape const& shape, HeadRows<S const> out, HeadRows<S const> dout,
                     View1<Acc<S>> delta) {
  P3D_REQUIRE(static_cast<std::int64_t>(delta.extent(0)) >= shape.statistics(), "every query and head has a delta");
  Problem<S> const p(shape, {}, out, {}, {});
  launch_tiles("p3d::kernels::attention_delta", exec, shape.samples * shape.heads * p.query_tiles,
               Delta<S>{p, {matrix(out), matrix(dout), delta}});
}

namespace {

/// The call as a vendor's library takes it, if it may go there.
template <class S, class D>
std::optional<FusedCall> fused_call(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                                    AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k,
                                    HeadRows<S const> v, View1<Acc<S> const> lse) {
  auto const tokens = shape.queries.size();
  bool const whole = shape.queries == shape.keys && shape.queries.stride == 1 && shape.queries.runs[1].count == 0;
  if constexpr (on_host || std::is_same_v<S, Acc<S>> || !std::is_same_v<S, D>) {
    return std::nullopt;
  } else {
    if (!fused_attention() || dropout.active() || shape.documents.extent(0) > 0 || !whole || tokens == 0)
      return std::nullopt;
    static bool const hooked = (Kokkos::push_finalize_hook([] { set_fused_attention(nullptr); }), true);
    static_cast<void>(hooked);  // what a library holds goes before Kokkos ends
    auto const rows = [](HeadRows<S const> r) { return FusedCall::Rows{const_cast<S*>(r.data), r.stride}; };
    FusedCall call;
    call.stream = device::native_stream(exec);
    call.type = std::is_same_v<S, bfloat16> ? FusedCall::Type::bfloat16 : FusedCall::Type::float16;
    call.samples = shape.samples, call.seq_len = tokens;
    call.heads = shape.heads, call.kv_heads = shape.kv_heads, call.head_dim = shape.head_dim;
    call.window = shape.window, call.scale = shape.scale;
    call.q = rows(q), call.k = rows(k), call.v = rows(v);
    call.lse = const_cast<float*>(lse.data());
    call.workspace = scratch.data, call.workspace_bytes = scratch.bytes;
    return call;
  }
}

}  // namespace

template <class S, class O>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                       AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                       Store store, HeadRows<O> out, View1<Acc<S>> lse) {
  P3D_REQUIRE(store == Store::overwrite || (std::is_same_v<O, Acc<S>>), "sums that go on are of the type of sums");
  P3D_REQUIRE(static_cast<std::int64_t>(lse.extent(0)) >= shape.statistics(), "every query and head has a log-sum-exp");
  if (auto call = fused_call<S, O>(exec, shape, dropout, scratch, q, k, v, lse); call && store == Store::overwrite) {
    call->out = {out.data, out.stride};
    if (run_fused(*fused_attention(), *call, false)) return;
  }
  if constexpr (on_host)
    blas::attention_forward<S, O>(exec, shape, dropout, scratch, q, k, v, store, out, lse);
  else
    portable::attention_forward<S, O>(exec, shape, dropout, scratch, q, k, v, store, out, lse);
}

template <class S, class D>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                        AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                        HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q,
                        HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv, WholeOutput<S> const& whole) {
  bool const ends = store_q == Store::overwrite && store_kv == Store::overwrite;
  P3D_REQUIRE(ends || (std::is_same_v<D, Acc<S>>), "sums that go on are of the type of sums");
  P3D_REQUIRE(!whole.out.data || (whole.delta.data() == delta.data() && shape.queries == shape.keys),
              "a whole output is over all keys, and its delta is the one that is read");
  if (auto call = fused_call<S, D>(exec, shape, dropout, scratch, q, k, v, lse); call && ends && whole.out.data) {
    call->out = {const_cast<S*>(whole.out.data), whole.out.stride};
    call->dout = {const_cast<S*>(dout.data), dout.stride};
    call->dq = {dq.data, dq.stride}, call->dk = {dk.data, dk.stride}, call->dv = {dv.data, dv.stride};
    if (run_fused(*fused_attention(), *call, true)) return;
  }
  if constexpr (on_host)
    blas::attention_backward<S, D>(exec, shape, dropout, scratch, q, k, v, dout, lse, delta, store_q, dq, store_kv, dk,
                                   dv, whole);
  else
    portable::attention_backward<S, D>(exec, shape, dropout, scratch, q, k, v, dout, lse, delta, store_q, dq, store_kv,
                                       dk, dv, whole);
}

template <class From, class To>
void copy_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<From const> from,
               Given<HeadRows<To>> to) {
  for_chunks<element_width>(
      "p3d::kernels::copy_rows", exec, rows, columns, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        From const* const in = from.data + r * from.stride + c;
        To* const out = to.data + r * to.stride + c;
        P3D_SIMD
        for (int i = 0; i < n; ++i) put(out[i], in[i]);
      });
}

template <class S>
void add_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<S const> from,
              Given<HeadRows<S>> to) {
  for_chunks<element_width>(
      "p3d::kernels::add_rows", exec, rows, columns, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        S const* const in = from.data + r * from.stride + c;
        S* const out = to.data + r * to.stride + c;
        P3D_SIMD
        for (int i = 0; i < n; ++i) out[i] += in[i];
      });
}

#define P3D_INSTANTIATE(From, To) \
  template void copy_rows<From, To>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<From const>, HeadRows<To>);
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(bfloat16, bfloat16)
P3D_INSTANTIATE(float16, float16)
P3D_INSTANTIATE(float, bfloat16)
P3D_INSTANTIATE(float, float16)
#undef P3D_INSTANTIATE
template void add_rows<double>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<double const>, HeadRows<double>);
template void add_rows<float>(ExecSpace const&, std::int64_t, std::int64_t, HeadRows<float const>, HeadRows<float>);

#define P3D_INSTANTIATE(S, D)                 \
  P3D_INSTANTIATE_ATTENTION(portable::, S, D) \
  P3D_INSTANTIATE_ATTENTION(, S, D)
P3D_ATTENTION_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(S)                                                                                        \
  template void attention_delta<S>(ExecSpace const&, AttentionShape const&, HeadRows<S const>, HeadRows<S const>, \
                                   View1<Acc<S>>);                                                                \
  template std::int64_t attention_scratch_bytes<S>(AttentionShape const&);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
