// SPDX-License-Identifier: Apache-2.0
// A unit of work is one head of one row: runs of neighbouring elements are copied. The sum over heads is a launch of
// its own, with some columns of a row for each thread, so that its order is always that of the heads.
#include <p3d/kernels/latent_heads.hpp>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// for_heads: unit i of work is head i % heads of row i / heads.
template <class Body>
struct HeadBody {
  std::int64_t heads;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(RowTeam const& team, std::int64_t i) const {
    std::int64_t const row = i / heads;
    body(team, row, i - row * heads);
  }
};
/// Calls body(team, row, head) for each head of each row. `columns`: elements of type S of a head.
template <class S, class Body>
void for_heads(char const* label, ExecSpace const& exec, std::int64_t rows, std::int64_t heads, std::int64_t columns,
               Body const& body) {
  for_rows(label, exec, rows * heads, HeadBody<Body>{heads, body}, chunks_of<S>(columns));
}

}  // namespace

template <class S>
void join_latent_heads(ExecSpace const& exec, LatentHeadShape const& shape, View2<S const> both, View2<S const> shared,
                       View2<S> keys, View2<S> values) {
  using A = Acc<S>;
  for_heads<S>(
      "p3d::kernels::join_latent_heads", exec, static_cast<std::int64_t>(both.extent(0)), shape.heads, shape.both(),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t h) {
        auto const same = [](S v) { return A(v); };
        S const* const from = &both(r, h * shape.both());
        S* const key = &keys(r, h * shape.key());
        map_row(team, shape.nope, key, same, from);
        map_row(team, shape.rope, key + shape.nope, same, &shared(r, 0));
        map_row(team, shape.value, &values(r, h * shape.value), same, from + shape.nope);
      });
}

template <class S, class T>
void split_latent_heads(ExecSpace const& exec, LatentHeadShape const& shape, View2<S const> keys, View2<S const> values,
                        View2<S> both, Given<View2<T>> shared) {
  using A = Acc<S>;
  auto const rows = static_cast<std::int64_t>(both.extent(0));
  for_heads<S>(
      "p3d::kernels::split_latent_heads", exec, rows, shape.heads, shape.both(),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t h) {
        auto const same = [](S v) { return A(v); };
        S* const to = &both(r, h * shape.both());
        map_row(team, shape.nope, to, same, &keys(r, h * shape.key()));
        map_row(team, shape.value, to + shape.nope, same, &values(r, h * shape.value));
      });
  for_chunks<wide<S>>(
      "p3d::kernels::sum_shared_keys", exec, rows, shape.rope, KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        constexpr int W = wide<S>;
        A sum[W] = {};
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          auto const from = read<W>(&keys(r, h * shape.key() + shape.nope + c), n);
          P3D_SIMD
          for (int i = 0; i < lanes<W>(n); ++i) sum[i] += static_cast<A>(from[i]);
        }
        auto to = write<W>(&shared(r, c), n);
        for (int i = 0; i < lanes<W>(n); ++i) put(to[i], sum[i]);
        to.store();
      });
}

template <class S>
void place_rotating_parts(ExecSpace const& exec, LatentHeadShape const& shape, std::int64_t latent,
                          View2<S const> queries, View2<S> absorbed) {
  using A = Acc<S>;
  for_heads<S>(
      "p3d::kernels::place_rotating_parts", exec, static_cast<std::int64_t>(queries.extent(0)), shape.heads, shape.rope,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t h) {
        map_row(
            team, shape.rope, &absorbed(r, h * (latent + shape.rope) + latent), [](S v) { return A(v); },
            &queries(r, h * shape.key() + shape.nope));
      });
}

#define P3D_INSTANTIATE(S)                                                                                         \
  template void join_latent_heads<S>(ExecSpace const&, LatentHeadShape const&, View2<S const>, View2<S const>,     \
                                     View2<S>, View2<S>);                                                          \
  template void split_latent_heads<S, S>(ExecSpace const&, LatentHeadShape const&, View2<S const>, View2<S const>, \
                                         View2<S>, View2<S>);                                                      \
  template void place_rotating_parts<S>(ExecSpace const&, LatentHeadShape const&, std::int64_t, View2<S const>,    \
                                        View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(S)                                                                                             \
  template void split_latent_heads<S, float>(ExecSpace const&, LatentHeadShape const&, View2<S const>, View2<S const>, \
                                             View2<S>, View2<float>);
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
