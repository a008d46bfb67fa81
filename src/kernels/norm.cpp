// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm, each with a form that is fused with the residual branches on both sides. A row belongs to
// one core or one team. Forward first computes the row's residual sum, if it has one, then the statistics and the
// result. Backward first sums over rows what the gradients of weight, bias and the next branch's bias need, then
// computes dx row by row.
#include <p3d/kernels/norm.hpp>

#include "residual.hpp"

namespace p3d::kernels {

namespace {

/// The residual sum of a forward pass, which computes it row by row before it reads the row. With an empty branch there
/// is nothing to compute.
template <class S>
struct MadeRows {
  ResidualSum<S> sum;
  View2<S> to;
  template <class Team>
  KOKKOS_INLINE_FUNCTION void row(Team const& team, std::int64_t r) const {
    if (sum.branch.extent(0) == 0) return;
    auto const hidden = static_cast<std::int64_t>(to.extent(1));
    auto const place = hidden_row(sum.rows, sum.dropout, hidden, r);
    each_chunk<wide<S>>(team, hidden,
                        [=, this](std::int64_t c, int n) { residual_chunk(sum, place, r, c, n, &to(r, c)); });
    wait_for_team(team);
  }
};

/// The forward pass of the layer norm, one row to a team.
template <class S>
void layernorm_rows(ExecSpace const& exec, MadeRows<S> const& rows, View2<S const> x, NormWeight<S> const& weight,
                    View1<S const> bias, double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  bool const has_bias = bias.extent(0) != 0;
  MadeRows<S> const made = rows;  // captured by value
  NormWeight<S> const at = weight;
  for_rows(
      "p3d::kernels::layernorm_forward", exec, x.extent(0),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        made.row(team, r);
        S const* const in = &x(r, 0);
        S* const out = &y(r, 0);
        S const* const w = at.values.data();
        A const o = at.offset;
        auto const count = static_cast<A>(hidden);
        A const m = sum_row<A>(
                        team, hidden, [](S v) { return A(v); }, in) /
                    count;
        // The variance is taken about the mean, in a second pass over a row that is in the cache: no cancellation.
        A const squares = sum_row<A>(
            team, hidden,
            [=](S v) {
              A const d = v - m;
              return d * d;
            },
            in);
        A const s = A(1) / std::sqrt(squares / count + static_cast<A>(eps));
        if (has_bias) {
          map_row(
              team, hidden, out, [=](S v, S by, S add) { return (v - m) * s * (by + o) + add; }, in, w, bias.data());
        } else {
          map_row(
              team, hidden, out, [=](S v, S by) { return (v - m) * s * (by + o); }, in, w);
        }
        once(team, [&] {
          mean(r) = m;
          rstd(r) = s;
        });
      },
      chunks_of<S>(hidden));
}

/// The forward pass of the RMS norm, one row to a team.
template <class S>
void rmsnorm_rows(ExecSpace const& exec, MadeRows<S> const& rows, View2<S const> x, NormWeight<S> const& weight,
                  double eps, View2<S> y, View1<Acc<S>> rrms) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  MadeRows<S> const made = rows;  // captured by value
  NormWeight<S> const at = weight;
  for_rows(
      "p3d::kernels::rmsnorm_forward", exec, x.extent(0),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        made.row(team, r);
        S const* const in = &x(r, 0);
        S* const out = &y(r, 0);
        S const* const w = at.values.data();
        A const o = at.offset;
        A const squares = sum_row<A>(
            team, hidden, [](S v) { return A(v) * v; }, in);
        A const s = A(1) / std::sqrt(squares / static_cast<A>(hidden) + static_cast<A>(eps));
        map_row(
            team, hidden, out, [=](S v, S by) { return v * s * (by + o); }, in, w);
        once(team, [&] { rrms(r) = s; });
      },
      chunks_of<S>(hidden));
}

}  // namespace

template <class S>
void layernorm_forward(ExecSpace const& exec, View2<S const> x, NormWeight<S> const& weight, View1<S const> bias,
                       double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd) {
  layernorm_rows<S>(exec, {}, x, weight, bias, eps, y, mean, rstd);
}

template <class S>
void layernorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, NormWeight<S> const& weight,
                       View1<S const> bias, double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd) {
  layernorm_rows<S>(exec, {sum, x}, x, weight, bias, eps, y, mean, rstd);
}

template <class S>
void rmsnorm_forward(ExecSpace const& exec, View2<S const> x, NormWeight<S> const& weight, double eps, View2<S> y,
                     View1<Acc<S>> rrms) {
  rmsnorm_rows<S>(exec, {}, x, weight, eps, y, rrms);
}

template <class S>
void rmsnorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, NormWeight<S> const& weight,
                     double eps, View2<S> y, View1<Acc<S>> rrms) {
  rmsnorm_rows<S>(exec, {sum, x}, x, weight, eps, y, rrms);
}

namespace {

/// The backward pass of both norms on one row. An empty mean makes it the RMS norm.
template <class S, class G>
struct NormBackward {
  using A = Acc<S>;
  View2<S const> dy, x;
  NormWeight<S> weight;
  View1<A const> mean, rstd;
  Store store;
  View2<S> dx;
  NormBranches<S, G> branches;

  /// Computes row r of dx. With xhat = (x - mean) rstd and d = dy weight,
  ///   dx = rstd (d - avg(d) - xhat avg(d xhat)),
  /// without avg(d) for the RMS norm, whose xhat has no mean.
  template <class Team>
  KOKKOS_INLINE_FUNCTION void row(Team const& team, std::int64_t r) const {
    auto const hidden = static_cast<std::int64_t>(x.extent(1));
    S const* const g = &dy(r, 0);
    S const* const in = &x(r, 0);
    S const* const w = weight.values.data();
    A const o = weight.offset;
    S* const out = &dx(r, 0);
    bool const adds = store == Store::add;
    A const s = rstd(r);
    auto const count = static_cast<A>(hidden);
    if (mean.extent(0) != 0) {
      A const m = mean(r);
      // Two sums of the row come first, avg(d) and avg(d xhat), since every element of dx needs both.
      A const a = sum_row<A>(
                      team, hidden, [=](S d, S by) { return d * (by + o); }, g, w) /
                  count;
      A const b = sum_row<A>(
                      team, hidden, [=](S d, S by, S v) { return d * (by + o) * ((v - m) * s); }, g, w, in) /
                  count;
      auto const slope = [=](S d, S by, S v) { return s * (d * (by + o) - a - (v - m) * s * b); };
      if (adds)
        map_row(
            team, hidden, out, [=](S old, S d, S by, S v) { return old + slope(d, by, v); }, out, g, w, in);
      else
        map_row(team, hidden, out, slope, g, w, in);
    } else {
      A const b = sum_row<A>(
                      team, hidden, [=](S d, S by, S v) { return d * (by + o) * (v * s); }, g, w, in) /
                  count;
      auto const slope = [=](S d, S by, S v) { return s * (d * (by + o) - v * s * b); };
      if (adds)
        map_row(
            team, hidden, out, [=](S old, S d, S by, S v) { return old + slope(d, by, v); }, out, g, w, in);
      else
        map_row(team, hidden, out, slope, g, w, in);
    }
    if (branches.before.extent(0) == 0) return;
    wait_for_team(team);
    auto const place = hidden_row(branches.rows, branches.dropout, hidden, r);
    each_chunk<wide<S>>(team, hidden, [=, this](std::int64_t c, int n) {
      dropout_chunk(place, branches.dropout, c, n, out + c, &branches.before(r, c));
    });
  }
};

/// The backward pass row by row, without sums over rows.
template <class S, class G>
void norm_rows(std::string const& label, ExecSpace const& exec, NormBackward<S, G> const& pass) {
  NormBackward<S, G> const p = pass;  // captured by value
  for_rows(
      label, exec, p.x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) { p.row(team, r); },
      chunks_of<S>(p.x.extent(1)));
}

/// Memory for the partial sums of blocks of rows: of dy xhat, of dy, and of the branch after the norm.
struct NormParts {
  View2<double> weight, bias, after;
};

/// The sums over the rows of each block (devices). One thread sums a few columns over all rows of a block, in
/// registers. Sums inside the pass over rows would go through memory with every row. The price: dy and x are read
/// twice.
template <class S, class G>
void norm_sums(std::string const& label, ExecSpace const& exec, NormBackward<S, G> const& pass, std::int64_t size,
               std::int64_t blocks, NormParts const& parts) {
  NormBackward<S, G> const p = pass;  // captured by value
  NormParts const put_in = parts;
  for_chunks<wide<S>>(
      label, exec, blocks, p.x.extent(1), KOKKOS_LAMBDA(std::int64_t block, std::int64_t c, int n) {
        constexpr int W = wide<S>;
        using A = Acc<S>;
        auto const rows = static_cast<std::int64_t>(p.x.extent(0));
        std::int64_t const begin = block * size, end = begin + size < rows ? begin + size : rows;
        bool const with_mean = p.mean.extent(0) != 0, with_bias = put_in.bias.extent(0) != 0,
                   with_after = put_in.after.extent(0) != 0;
        double weight[W] = {}, bias[W] = {}, after[W] = {};
        for (std::int64_t r = begin; r < end; ++r) {
          A const m = with_mean ? p.mean(r) : A(0), s = p.rstd(r);
          auto const d = read<W>(&p.dy(r, c), n), x = read<W>(&p.x(r, c), n);
          for (int i = 0; i < lanes<W>(n); ++i) weight[i] += d[i] * ((x[i] - m) * s);
          if (with_bias)
            for (int i = 0; i < lanes<W>(n); ++i) bias[i] += d[i];
          if (with_after) {
            auto const o = read<W>(&p.branches.after(r, c), n);
            for (int i = 0; i < lanes<W>(n); ++i) after[i] += o[i];
          }
        }
        for (int i = 0; i < lanes<W>(n); ++i) {
          if (i >= n) break;
          put_in.weight(block, c + i) = weight[i];
          if (with_bias) put_in.bias(block, c + i) = bias[i];
          if (with_after) put_in.after(block, c + i) = after[i];
        }
      });
}

// The backward pass of either norm with its sums over rows, which come first: the branch after the norm may be the
// memory that dx is stored to. On devices blocks of rows are summed, and finish() adds the blocks.
template <class S, class G>
void norm_backward(std::string const& label, ExecSpace const& exec, NormBackward<S, G> const& p, View1<G> dweight,
                   View1<G> dbias, ColumnSums<S, G>& sums) {
  auto const rows = static_cast<std::int64_t>(p.x.extent(0)), hidden = static_cast<std::int64_t>(p.x.extent(1));
  auto const& branches = p.branches;
  if constexpr (on_host) {
    sums.add_norm(p.dy, p.x, p.mean, p.rstd, dweight, dbias);
    sums.add(branches.after, branches.after_bias);
    sums.finish(exec);
    norm_rows<S, G>(label, exec, p);
  } else if (rows > 0) {
    std::int64_t const size = ColumnSums<S, G>::rows_of_part(rows, hidden), blocks = (rows + size - 1) / size;
    NormParts parts;
    parts.weight = sums.add_parts(blocks, dweight);
    if (dbias.extent(0) != 0) parts.bias = sums.add_parts(blocks, dbias);
    if (branches.after_bias.extent(0) != 0) parts.after = sums.add_parts(blocks, branches.after_bias);
    norm_sums<S, G>(label + "_sums", exec, p, size, blocks, parts);
    norm_rows<S, G>(label, exec, p);
  }
}

}  // namespace

template <class S, class G>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias, NormBranches<S, G> const& branches,
                        ColumnSums<S, G>& sums) {
  norm_backward<S, G>("p3d::kernels::layernorm_backward", exec, {dy, x, weight, mean, rstd, store, dx, branches},
                      dweight, dbias, sums);
}

template <class S, class G>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight,
                      NormBranches<S, G> const& branches, ColumnSums<S, G>& sums) {
  norm_backward<S, G>("p3d::kernels::rmsnorm_backward", exec, {dy, x, weight, {}, rrms, store, dx, branches}, dweight,
                      {}, sums);
}

template <class S, class G>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias) {
  ColumnSums<S, G> sums;
  layernorm_backward<S, G>(exec, dy, x, weight, mean, rstd, store, dx, dweight, dbias, {}, sums);
  sums.finish(exec);
}

template <class S, class G>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight) {
  ColumnSums<S, G> sums;
  rmsnorm_backward<S, G>(exec, dy, x, weight, rrms, store, dx, dweight, {}, sums);
  sums.finish(exec);
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void layernorm_forward<S>(ExecSpace const&, View2<S const>, NormWeight<S> const&, View1<S const>, double, \
                                     View2<S>, View1<Acc<S>>, View1<Acc<S>>);                                        \
  template void layernorm_forward<S>(ExecSpace const&, ResidualSum<S> const&, View2<S>, NormWeight<S> const&,        \
                                     View1<S const>, double, View2<S>, View1<Acc<S>>, View1<Acc<S>>);                \
  template void rmsnorm_forward<S>(ExecSpace const&, View2<S const>, NormWeight<S> const&, double, View2<S>,         \
                                   View1<Acc<S>>);                                                                   \
  template void rmsnorm_forward<S>(ExecSpace const&, ResidualSum<S> const&, View2<S>, NormWeight<S> const&, double,  \
                                   View2<S>, View1<Acc<S>>);                                                         \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                                            \
  template void layernorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, NormWeight<S> const&,  \
                                         View1<Acc<S> const>, View1<Acc<S> const>, Store, View2<S>, View1<G>,     \
                                         View1<G>);                                                               \
  template void layernorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, NormWeight<S> const&,  \
                                         View1<Acc<S> const>, View1<Acc<S> const>, Store, View2<S>, View1<G>,     \
                                         View1<G>, NormBranches<S, G> const&, ColumnSums<S, G>&);                 \
  template void rmsnorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, NormWeight<S> const&,    \
                                       View1<Acc<S> const>, Store, View2<S>, View1<G>);                           \
  template void rmsnorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, NormWeight<S> const&,    \
                                       View1<Acc<S> const>, Store, View2<S>, View1<G>, NormBranches<S, G> const&, \
                                       ColumnSums<S, G>&);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE_GRADIENT
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
