// SPDX-License-Identifier: Apache-2.0
// Attention of the newest tokens over cached keys and values, one row and head to a team. The team walks the keys in
// tiles and keeps the softmax's running maximum and sum, as attention_blas.cpp does.
#include <p3d/kernels/cached_attention.hpp>

#include "attention_tile.hpp"

namespace p3d::kernels {

namespace {

/// Keys whose scores a team has at a time.
constexpr int tile = on_host ? 64 : 16;

/// One row of one query head, by one team, which runs over tiles of its text's keys with the softmax's running maximum.
template <class S>
struct CachedForward {
  using T = Acc<S>;
  TokenRows rows;
  AttentionShape shape;
  CachedTexts texts;
  View2<S const> qkv, keys, values;
  View1<S const> sinks;
  View2<S> out;
  std::size_t bytes;
  int level = 0;

  KOKKOS_INLINE_FUNCTION void operator()(TileTeam const& team) const {
    std::int64_t const row = team.league_rank() / shape.heads, head = team.league_rank() % shape.heads;
    std::int64_t const kv = head / (shape.heads / shape.kv_heads), dim = shape.head_dim, values_dim = shape.values();
    std::int64_t const length = rows.positions(row) + 1;
    std::int64_t const stride = texts.value_stride > 0 ? texts.value_stride : values_dim;
    int const key_columns = static_cast<int>(dim), columns = static_cast<int>(values_dim);
    std::int64_t const cache = texts.text(row) * shape.kv_heads + kv;
    S const* const q = &qkv(row, head * dim);
    T const scale = static_cast<T>(shape.scale), cap = static_cast<T>(shape.softcap);
    auto scratch = scratch_of<T>(team, level, bytes);
    T* const score = scratch.take(tile);
    T* const y = scratch.take(values_dim);
    tile_rows(team, 1, [&](int) { tile_cols(team, columns, [=](int d) { y[d] = T(0); }); });
    // Every thread of the team keeps the maximum and the sum for itself.
    bool const sink = sinks.extent(0) > 0;
    T top = sink ? T(sinks(head)) : -infinity<T>, sum = sink ? T(1) : T(0);
    std::int64_t const first = shape.window > 0 && shape.window < length ? length - shape.window : 0;
    for (std::int64_t key0 = first; key0 < length; key0 += tile) {
      int const count = static_cast<int>(length - key0 < tile ? length - key0 : tile);
      S const* const k = &keys(cache, key0 * dim);
      S const* const v = &values(cache, key0 * stride);
      tile_rows(team, count, [&](int j) {
        S const* const kj = k + j * dim;
        T const dot = scale * tile_col_sum<T>(team, key_columns, [=](int d) { return T(q[d]) * T(kj[d]); });
        tile_once(team, [&] { score[j] = cap > T(0) ? soft_cap(dot, cap) : dot; });
      });
      tile_barrier(team);
      T const before = top;
      for (int j = 0; j < count; ++j) top = score[j] > top ? score[j] : top;
      // The sums so far refer to the old maximum: `shrink` rescales them to the new one.
      T const now = top, shrink = exp_of(before - now);
      tile_barrier(team);
      tile_rows(team, 1, [&](int) { tile_cols(team, count, [=](int j) { score[j] = exp_of(score[j] - now); }); });
      tile_barrier(team);
      sum *= shrink;
      for (int j = 0; j < count; ++j) sum += score[j];
      // On the host one thread adds whole rows of values; elsewhere each lane adds one column over all keys of the
      // tile.
      if constexpr (on_host) {
        tile_cols(team, columns, [=](int d) { y[d] *= shrink; });
        for (int j = 0; j < count; ++j) {
          S const* const vj = v + j * stride;
          T const p = score[j];
          tile_cols(team, columns, [=](int d) { y[d] += p * T(vj[d]); });
        }
      } else {
        constexpr int width = 16;
        tile_rows(team, (columns + width - 1) / width, [&](int block) {
          int const first = block * width;
          tile_cols(team, columns - first < width ? columns - first : width, [=](int i) {
            T part = y[first + i] * shrink;
            for (int j = 0; j < count; ++j) part += score[j] * T(v[j * stride + first + i]);
            y[first + i] = part;
          });
        });
      }
      tile_barrier(team);
    }
    S* const result = &out(row, head * values_dim);
    T const inverse = T(1) / sum;
    tile_rows(team, 1, [&](int) { tile_cols(team, columns, [=](int d) { put(result[d], y[d] * inverse); }); });
  }
};

}  // namespace

template <class S>
void store_in_cache(ExecSpace const& exec, TokenRows const& rows, CachedTexts const& texts, std::int64_t kv_heads,
                    View2<S const> from, View2<S> cache) {
  auto const width = static_cast<std::int64_t>(from.extent(1)) / kv_heads;
  auto const positions = rows.positions;
  for_rows(
      "p3d::kernels::store_in_cache", exec, rows.rows() * kv_heads, KOKKOS_LAMBDA(RowTeam const& team, std::int64_t i) {
        std::int64_t const row = i / kv_heads, kv = i % kv_heads;
        S const* const in = &from(row, kv * width);
        S* const to = &cache(texts.text(row) * kv_heads + kv, positions(row) * width);
        each(team, width, [=](std::int64_t d) { to[d] = in[d]; });
      });
}

template <class S>
void store_keys_values(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                       CachedTexts const& texts, View2<S const> qkv, View2<S> keys, View2<S> values) {
  std::int64_t const kv_heads = shape.kv_heads, dim = shape.head_dim, values_dim = shape.values();
  std::int64_t const first_key = shape.heads * dim, first_value = first_key + kv_heads * dim;
  auto const positions = rows.positions;
  for_rows(
      "p3d::kernels::store_keys_values", exec, rows.rows() * kv_heads,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t i) {
        std::int64_t const row = i / kv_heads, kv = i % kv_heads;
        std::int64_t const cache = texts.text(row) * kv_heads + kv, position = positions(row);
        S const* const k = &qkv(row, first_key + kv * dim);
        S const* const v = &qkv(row, first_value + kv * values_dim);
        S* const to_k = &keys(cache, position * dim);
        S* const to_v = &values(cache, position * values_dim);
        each(team, dim, [=](std::int64_t d) { to_k[d] = k[d]; });
        each(team, values_dim, [=](std::int64_t d) { to_v[d] = v[d]; });
      });
}

template <class S>
void cached_attention_forward(ExecSpace const& exec, TokenRows const& rows, AttentionShape const& shape,
                              CachedTexts const& texts, View2<S const> qkv, View2<S const> keys, View2<S const> values,
                              Given<View1<S const>> sinks, View2<S> out) {
  using Pieces = Scratch<Acc<S>>;
  auto const bytes =
      64 + sizeof(Acc<S>) * static_cast<std::size_t>(Pieces::padded(tile) + Pieces::padded(shape.values()));
  launch_tiles("p3d::kernels::cached_attention_forward", exec, rows.rows() * shape.heads,
               CachedForward<S>{rows, shape, texts, qkv, keys, values, sinks, out, bytes});
}

#define P3D_INSTANTIATE(S)                                                                                          \
  template void store_in_cache<S>(ExecSpace const&, TokenRows const&, CachedTexts const&, std::int64_t,             \
                                  View2<S const>, View2<S>);                                                        \
  template void store_keys_values<S>(ExecSpace const&, TokenRows const&, AttentionShape const&, CachedTexts const&, \
                                     View2<S const>, View2<S>, View2<S>);                                           \
  template void cached_attention_forward<S>(ExecSpace const&, TokenRows const&, AttentionShape const&,              \
                                            CachedTexts const&, View2<S const>, View2<S const>, View2<S const>,     \
                                            Given<View1<S const>>, View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
