// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/norm.hpp>

#include "column_sum.hpp"

namespace p3d::kernels {

namespace {

/// dweight[c] += sum over rows of dy xhat, dbias[c] += sum over rows of dy, with xhat = (x - mean) rstd; without a mean
/// (RMS) xhat = x rstd.
template <class S, class G>
void weight_gradients(std::string const& label, ExecSpace const& exec, View2<S const> dy, View2<S const> x,
                      View1<Acc<S> const> mean, View1<Acc<S> const> rstd, View1<G> dweight, View1<G> dbias) {
  using A = Acc<S>;
  auto const rows = static_cast<std::int64_t>(x.extent(0));
  bool const has_mean = mean.extent(0) != 0, has_bias = dbias.extent(0) != 0;
  if constexpr (!on_host) {
    sum_columns<2>(
        label, exec, rows, static_cast<std::int64_t>(x.extent(1)),
        KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, ColumnSums<2> & s) {
          A const g = dy(r, c), m = has_mean ? mean(r) : A(0);
          s.sum[0] += g * ((x(r, c) - m) * rstd(r));
          s.sum[1] += g;
        },
        KOKKOS_LAMBDA(std::int64_t c, ColumnSums<2> const& s) {
          dweight(c) = static_cast<G>(dweight(c) + s.sum[0]);
          if (has_bias) dbias(c) = static_cast<G>(dbias(c) + s.sum[1]);
        });
    return;
  }
  for_chunks<column_width>(
      label, exec, 1, x.extent(1), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        Long weight_sum[column_width] = {}, bias_sum[column_width] = {};
        for (std::int64_t r = 0; r < rows; ++r) {
          S const* const g = &dy(r, c);
          S const* const v = &x(r, c);
          A const m = has_mean ? mean(r) : A(0), s = rstd(r);
          P3D_SIMD
          for (int i = 0; i < n; ++i) {
            weight_sum[i] += g[i] * ((v[i] - m) * s);
            bias_sum[i] += g[i];
          }
        }
        for (int i = 0; i < n; ++i) dweight(c + i) = static_cast<G>(dweight(c + i) + weight_sum[i]);
        if (has_bias)
          for (int i = 0; i < n; ++i) dbias(c + i) = static_cast<G>(dbias(c + i) + bias_sum[i]);
      });
}

}  // namespace

template <class S>
void layernorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, View1<S const> bias, double eps,
                       View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  bool const has_bias = bias.extent(0) != 0;
  for_rows(
      "p3d::kernels::layernorm_forward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        S const* const in = &x(r, 0);
        S* const out = &y(r, 0);
        S const* const w = weight.data();
        auto const count = static_cast<A>(hidden);
        A const m = sum_of<A>(team, hidden, [=](std::int64_t i) { return A(in[i]); }) / count;
        // The variance about the mean, in a second pass over a row that is in cache: no cancellation.
        A const squares = sum_of<A>(team, hidden, [=](std::int64_t i) {
          A const d = in[i] - m;
          return d * d;
        });
        A const s = A(1) / std::sqrt(squares / count + static_cast<A>(eps));
        if (has_bias) {
          S const* const b = bias.data();
          each(team, hidden, [=](std::int64_t i) { put(out[i], (in[i] - m) * s * w[i] + b[i]); });
        } else {
          each(team, hidden, [=](std::int64_t i) { put(out[i], (in[i] - m) * s * w[i]); });
        }
        once(team, [&] {
          mean(r) = m;
          rstd(r) = s;
        });
      });
}

// With xhat = (x - mean) rstd and d = dy weight:  dx = rstd (d - avg(d) - xhat avg(d xhat)).
template <class S, class G>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::layernorm_backward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        S const* const g = &dy(r, 0);
        S const* const in = &x(r, 0);
        S const* const w = weight.data();
        S* const out = &dx(r, 0);
        A const m = mean(r), s = rstd(r);
        auto const count = static_cast<A>(hidden);
        A const a = sum_of<A>(team, hidden, [=](std::int64_t i) { return g[i] * w[i]; }) / count;
        A const b = sum_of<A>(team, hidden, [=](std::int64_t i) { return g[i] * w[i] * ((in[i] - m) * s); }) / count;
        if (store == Store::add)
          each(team, hidden,
               [=](std::int64_t i) { put(out[i], out[i] + s * (g[i] * w[i] - a - (in[i] - m) * s * b)); });
        else
          each(team, hidden, [=](std::int64_t i) { put(out[i], s * (g[i] * w[i] - a - (in[i] - m) * s * b)); });
      });
  weight_gradients<S, G>("p3d::kernels::layernorm_weight_gradients", exec, dy, x, mean, rstd, dweight, dbias);
}

template <class S>
void rmsnorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, double eps, View2<S> y,
                     View1<Acc<S>> rrms) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::rmsnorm_forward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        S const* const in = &x(r, 0);
        S* const out = &y(r, 0);
        S const* const w = weight.data();
        A const squares = sum_of<A>(team, hidden, [=](std::int64_t i) { return A(in[i]) * in[i]; });
        A const s = A(1) / std::sqrt(squares / static_cast<A>(hidden) + static_cast<A>(eps));
        each(team, hidden, [=](std::int64_t i) { put(out[i], in[i] * s * w[i]); });
        once(team, [&] { rrms(r) = s; });
      });
}

// With xhat = x rrms and d = dy weight:  dx = rrms (d - xhat avg(d xhat)).
template <class S, class G>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight) {
  using A = Acc<S>;
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::rmsnorm_backward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        S const* const g = &dy(r, 0);
        S const* const in = &x(r, 0);
        S const* const w = weight.data();
        S* const out = &dx(r, 0);
        A const s = rrms(r);
        A const b =
            sum_of<A>(team, hidden, [=](std::int64_t i) { return g[i] * w[i] * (in[i] * s); }) / static_cast<A>(hidden);
        if (store == Store::add)
          each(team, hidden, [=](std::int64_t i) { put(out[i], out[i] + s * (g[i] * w[i] - in[i] * s * b)); });
        else
          each(team, hidden, [=](std::int64_t i) { put(out[i], s * (g[i] * w[i] - in[i] * s * b)); });
      });
  weight_gradients<S, G>("p3d::kernels::rmsnorm_weight_gradients", exec, dy, x, View1<Acc<S> const>(), rrms, dweight,
                         View1<G>());
}

#define P3D_INSTANTIATE(S)                                                                                             \
  template void layernorm_forward<S>(ExecSpace const&, View2<S const>, View1<S const>, View1<S const>, double,         \
                                     View2<S>, View1<Acc<S>>, View1<Acc<S>>);                                          \
  template void rmsnorm_forward<S>(ExecSpace const&, View2<S const>, View1<S const>, double, View2<S>, View1<Acc<S>>); \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                                        \
  template void layernorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, View1<S const>,    \
                                         View1<Acc<S> const>, View1<Acc<S> const>, Store, View2<S>, View1<G>, \
                                         View1<G>);                                                           \
  template void rmsnorm_backward<S, G>(ExecSpace const&, View2<S const>, View2<S const>, View1<S const>,      \
                                       View1<Acc<S> const>, Store, View2<S>, View1<G>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE_GRADIENT
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
