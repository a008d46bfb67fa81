// SPDX-License-Identifier: Apache-2.0
// A unit of work is one norm of one row. The gradients of weights are sums over rows and, where each head has a norm,
// over heads: blocks of rows are summed into the workspace of column sums, before the gradient is overwritten.
#include <p3d/kernels/qk_norm.hpp>

#include "column_sum.hpp"
#include "wide.hpp"

#include <algorithm>

namespace p3d::kernels {

namespace {

/// The weights of norm g.
template <class S>
KOKKOS_FORCEINLINE_FUNCTION S const* weight_of(QkNormShape const& shape, QkNormVectors<S const> const& weights,
                                               std::int64_t g) {
  return g < shape.query_norms() ? weights.queries.data() : weights.keys.data();
}

/// The sum of dy weight x rrms over the columns of a norm.
template <class S, class Team>
KOKKOS_INLINE_FUNCTION Acc<S> product(Team const& team, std::int64_t columns, S const* dy, S const* weight, S const* x,
                                      Acc<S> scale, Acc<S> o) {
  return sum_row<Acc<S>>(
      team, columns, [=](S d, S by, S v) { return d * (by + o) * (v * scale); }, dy, weight, x);
}

/// for_norms: unit i of work is norm i % norms of row i / norms.
template <class Body>
struct NormBody {
  std::int64_t norms;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(RowTeam const& team, std::int64_t i) const {
    std::int64_t const row = i / norms;
    body(team, row, i - row * norms);
  }
};
/// Calls body(team, row, norm) for each norm of each row of elements of type S.
template <class S, class Body>
void for_norms(std::string const& label, ExecSpace const& exec, QkNormShape const& shape, std::int64_t rows,
               Body const& body) {
  auto const columns = std::max(shape.columns(0), shape.columns(shape.norms() - 1));
  for_rows(label, exec, rows * shape.norms(), NormBody<Body>{shape.norms(), body}, chunks_of<S>(columns));
}

/// Adds up dy x rrms for the weights of norms [first, end), which all have the same columns: one thread takes some
/// columns of a block of rows.
template <class S, class G>
void sum_weights(ExecSpace const& exec, QkNormShape const& shape, std::int64_t first, std::int64_t end,
                 View2<S const> dqkv, View2<S const> before, View2<Acc<S> const> scale, View1<G> gradient,
                 ColumnSums<S, G>& sums) {
  auto const rows = static_cast<std::int64_t>(dqkv.extent(0)), columns = shape.columns(first);
  // Half the room of a norm's sums (ColumnSums::rows_of_part): a layer has two of these beside six of those.
  auto const size = rows_of_block(rows, columns, column_workspace_size / 16, 8);
  auto const blocks = (rows + size - 1) / size;
  auto const parts = sums.add_parts(blocks, gradient);
  for_chunks<column_width>(
      "p3d::kernels::qk_norm_weights", exec, blocks, columns, KOKKOS_LAMBDA(std::int64_t block, std::int64_t c, int n) {
        double sum[column_width] = {};
        auto const last = (block + 1) * size < rows ? (block + 1) * size : rows;
        for (auto r = block * size; r < last; ++r) {
          for (auto g = first; g < end; ++g) {
            auto const at = shape.begin(g) + c;
            S const* const d = &dqkv(r, at);
            S const* const x = &before(r, at);
            auto const s = scale(r, g);
            P3D_SIMD
            for (int i = 0; i < n; ++i) sum[i] += d[i] * (x[i] * s);
          }
        }
        for (int i = 0; i < n; ++i) parts(block, c + i) = sum[i];
      });
}

}  // namespace

template <class S>
void qk_norm_squares(ExecSpace const& exec, QkNormShape const& shape, View2<S const> qkv, View2<Acc<S>> sums) {
  using A = Acc<S>;
  for_norms<S>(
      "p3d::kernels::qk_norm_squares", exec, shape, static_cast<std::int64_t>(qkv.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t g) {
        A const squares = sum_row<A>(
            team, shape.columns(g), [](S v) { return A(v) * v; }, &qkv(r, shape.begin(g)));
        once(team, [&] { sums(r, g) = squares; });
      });
}

template <class S>
void qk_norm_forward(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                     View2<Acc<S> const> sums, View2<S> qkv, View2<S> before, View2<Acc<S>> scale) {
  using A = Acc<S>;
  bool const given = sums.extent(0) != 0;
  auto const w = weights;  // captured by value
  for_norms<S>(
      "p3d::kernels::qk_norm_forward", exec, shape, static_cast<std::int64_t>(qkv.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t g) {
        auto const columns = shape.columns(g);
        S* const x = &qkv(r, shape.begin(g));
        A squares;
        if (given)
          squares = sums(r, g);
        else
          squares = sum_row<A>(
              team, columns, [](S v) { return A(v) * v; }, static_cast<S const*>(x));
        A const s = A(1) / std::sqrt(squares / static_cast<A>(shape.elements(g)) + static_cast<A>(shape.eps));
        S* const copy = &before(r, shape.begin(g));
        map_row(
            team, columns, copy, [](S v) { return A(v); }, static_cast<S const*>(x));
        wait_for_team(team);
        A const o = static_cast<A>(shape.offset);
        map_row(
            team, columns, x, [=](S v, S by) { return v * s * (by + o); }, static_cast<S const*>(copy),
            weight_of<S>(shape, w, g));
        once(team, [&] { scale(r, g) = s; });
      });
}

template <class S>
void qk_norm_products(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                      View2<S const> dqkv, View2<S const> before, View2<Acc<S> const> scale, View2<Acc<S>> sums) {
  auto const w = weights;  // captured by value
  for_norms<S>(
      "p3d::kernels::qk_norm_products", exec, shape, static_cast<std::int64_t>(dqkv.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t g) {
        auto const begin = shape.begin(g);
        auto const sum = product<S>(team, shape.columns(g), &dqkv(r, begin), weight_of<S>(shape, w, g),
                                    &before(r, begin), scale(r, g), static_cast<Acc<S>>(shape.offset));
        once(team, [&] { sums(r, g) = sum; });
      });
}

// With d = dy weight and xhat = x rrms, dx = rrms (d - xhat avg(d xhat)).
template <class S, class G>
void qk_norm_backward(ExecSpace const& exec, QkNormShape const& shape, QkNormVectors<S const> const& weights,
                      View2<Acc<S> const> sums, View2<S> dqkv, View2<S const> before, View2<Acc<S> const> scale,
                      QkNormVectors<G> const& gradients, ColumnSums<S, G>& sums_over_rows) {
  using A = Acc<S>;
  auto const rows = static_cast<std::int64_t>(dqkv.extent(0));
  if (rows == 0) return;
  auto const queries = shape.query_norms();
  if (queries > 0) sum_weights<S, G>(exec, shape, 0, queries, dqkv, before, scale, gradients.queries, sums_over_rows);
  sum_weights<S, G>(exec, shape, queries, shape.norms(), dqkv, before, scale, gradients.keys, sums_over_rows);
  bool const given = sums.extent(0) != 0;
  auto const w = weights;  // captured by value
  for_norms<S>(
      "p3d::kernels::qk_norm_backward", exec, shape, rows,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r, std::int64_t g) {
        auto const columns = shape.columns(g), begin = shape.begin(g);
        S* const dx = &dqkv(r, begin);
        S const* const x = &before(r, begin);
        S const* const by = weight_of<S>(shape, w, g);
        A const s = scale(r, g), o = static_cast<A>(shape.offset);
        A sum;
        if (given)
          sum = sums(r, g);
        else
          sum = product<S>(team, columns, static_cast<S const*>(dx), by, x, s, o);
        A const b = sum / static_cast<A>(shape.elements(g));
        wait_for_team(team);
        map_row(
            team, columns, dx, [=](S d, S f, S v) { return s * (d * (f + o) - v * s * b); }, static_cast<S const*>(dx),
            by, x);
      });
}

#define P3D_INSTANTIATE(S)                                                                               \
  template void qk_norm_squares<S>(ExecSpace const&, QkNormShape const&, View2<S const>, View2<Acc<S>>); \
  template void qk_norm_forward<S>(ExecSpace const&, QkNormShape const&, QkNormVectors<S const> const&,  \
                                   View2<Acc<S> const>, View2<S>, View2<S>, View2<Acc<S>>);              \
  template void qk_norm_products<S>(ExecSpace const&, QkNormShape const&, QkNormVectors<S const> const&, \
                                    View2<S const>, View2<S const>, View2<Acc<S> const>, View2<Acc<S>>); \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                                      \
  template void qk_norm_backward<S, G>(ExecSpace const&, QkNormShape const&, QkNormVectors<S const> const&, \
                                       View2<Acc<S> const>, View2<S>, View2<S const>, View2<Acc<S> const>,  \
                                       QkNormVectors<G> const&, ColumnSums<S, G>&);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE
#undef P3D_INSTANTIATE_GRADIENT

}  // namespace p3d::kernels
