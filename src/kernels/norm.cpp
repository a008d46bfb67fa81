// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/norm.hpp>

#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// dweight[c] += sum over rows of dy xhat, dbias[c] += sum over rows of dy, with xhat = (x - mean) rstd; without a mean
/// (RMS) xhat = x rstd.
template <class T>
void weight_gradients(std::string const& label, ExecSpace const& exec, View2<T const> dy, View2<T const> x,
                      View1<T const> mean, View1<T const> rstd, View1<T> dweight, View1<T> dbias) {
  auto const rows = static_cast<std::int64_t>(x.extent(0));
  bool const has_mean = mean.extent(0) != 0, has_bias = dbias.extent(0) != 0;
  for_chunks<column_width>(
      label, exec, 1, x.extent(1), KOKKOS_LAMBDA(std::int64_t, std::int64_t c, int n) {
        Long<T> weight_sum[column_width] = {}, bias_sum[column_width] = {};
        for (std::int64_t r = 0; r < rows; ++r) {
          T const* const g = &dy(r, c);
          T const* const v = &x(r, c);
          T const m = has_mean ? mean(r) : T(0), s = rstd(r);
          P3D_SIMD
          for (int i = 0; i < n; ++i) {
            weight_sum[i] += g[i] * ((v[i] - m) * s);
            bias_sum[i] += g[i];
          }
        }
        for (int i = 0; i < n; ++i) dweight(c + i) = static_cast<T>(dweight(c + i) + weight_sum[i]);
        if (has_bias)
          for (int i = 0; i < n; ++i) dbias(c + i) = static_cast<T>(dbias(c + i) + bias_sum[i]);
      });
}

}  // namespace

template <class T>
void layernorm_forward(ExecSpace const& exec, View2<T const> x, View1<T const> weight, View1<T const> bias, double eps,
                       View2<T> y, View1<T> mean, View1<T> rstd) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  bool const has_bias = bias.extent(0) != 0;
  for_rows(
      "p3d::kernels::layernorm_forward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        T const* const in = &x(r, 0);
        T* const out = &y(r, 0);
        T const* const w = weight.data();
        auto const count = static_cast<Acc<T>>(hidden);
        Acc<T> const m = sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) { return Acc<T>(in[i]); }) / count;
        // The variance about the mean, in a second pass over a row that is in cache: no cancellation.
        Acc<T> const squares = sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) {
          Acc<T> const d = in[i] - m;
          return d * d;
        });
        Acc<T> const s = Acc<T>(1) / std::sqrt(squares / count + static_cast<Acc<T>>(eps));
        if (has_bias) {
          T const* const b = bias.data();
          each(team, hidden, [=](std::int64_t i) { out[i] = (in[i] - m) * s * w[i] + b[i]; });
        } else {
          each(team, hidden, [=](std::int64_t i) { out[i] = (in[i] - m) * s * w[i]; });
        }
        once(team, [&] {
          mean(r) = m;
          rstd(r) = s;
        });
      });
}

// With xhat = (x - mean) rstd and d = dy weight:  dx = rstd (d - avg(d) - xhat avg(d xhat)).
template <class T>
void layernorm_backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, View1<T const> weight,
                        View1<T const> mean, View1<T const> rstd, Store store, View2<T> dx, View1<T> dweight,
                        View1<T> dbias) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::layernorm_backward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        T const* const g = &dy(r, 0);
        T const* const in = &x(r, 0);
        T const* const w = weight.data();
        T* const out = &dx(r, 0);
        Acc<T> const m = mean(r), s = rstd(r);
        auto const count = static_cast<Acc<T>>(hidden);
        Acc<T> const a = sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) { return g[i] * w[i]; }) / count;
        Acc<T> const b =
            sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) { return g[i] * w[i] * ((in[i] - m) * s); }) / count;
        if (store == Store::add)
          each(team, hidden, [=](std::int64_t i) { out[i] += s * (g[i] * w[i] - a - (in[i] - m) * s * b); });
        else
          each(team, hidden, [=](std::int64_t i) { out[i] = s * (g[i] * w[i] - a - (in[i] - m) * s * b); });
      });
  weight_gradients<T>("p3d::kernels::layernorm_weight_gradients", exec, dy, x, mean, rstd, dweight, dbias);
}

template <class T>
void rmsnorm_forward(ExecSpace const& exec, View2<T const> x, View1<T const> weight, double eps, View2<T> y,
                     View1<T> rrms) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::rmsnorm_forward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        T const* const in = &x(r, 0);
        T* const out = &y(r, 0);
        T const* const w = weight.data();
        Acc<T> const squares = sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) { return Acc<T>(in[i]) * in[i]; });
        Acc<T> const s = Acc<T>(1) / std::sqrt(squares / static_cast<Acc<T>>(hidden) + static_cast<Acc<T>>(eps));
        each(team, hidden, [=](std::int64_t i) { out[i] = in[i] * s * w[i]; });
        once(team, [&] { rrms(r) = s; });
      });
}

// With xhat = x rrms and d = dy weight:  dx = rrms (d - xhat avg(d xhat)).
template <class T>
void rmsnorm_backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, View1<T const> weight,
                      View1<T const> rrms, Store store, View2<T> dx, View1<T> dweight) {
  auto const hidden = static_cast<std::int64_t>(x.extent(1));
  for_rows(
      "p3d::kernels::rmsnorm_backward", exec, x.extent(0), KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        T const* const g = &dy(r, 0);
        T const* const in = &x(r, 0);
        T const* const w = weight.data();
        T* const out = &dx(r, 0);
        Acc<T> const s = rrms(r);
        Acc<T> const b = sum_of<Acc<T>>(team, hidden, [=](std::int64_t i) { return g[i] * w[i] * (in[i] * s); }) /
                         static_cast<Acc<T>>(hidden);
        if (store == Store::add)
          each(team, hidden, [=](std::int64_t i) { out[i] += s * (g[i] * w[i] - in[i] * s * b); });
        else
          each(team, hidden, [=](std::int64_t i) { out[i] = s * (g[i] * w[i] - in[i] * s * b); });
      });
  weight_gradients<T>("p3d::kernels::rmsnorm_weight_gradients", exec, dy, x, View1<T const>(), rrms, dweight,
                      View1<T>());
}

#define P3D_INSTANTIATE(T)                                                                                            \
  template void layernorm_forward<T>(ExecSpace const&, View2<T const>, View1<T const>, View1<T const>, double,        \
                                     View2<T>, View1<T>, View1<T>);                                                   \
  template void layernorm_backward<T>(ExecSpace const&, View2<T const>, View2<T const>, View1<T const>,               \
                                      View1<T const>, View1<T const>, Store, View2<T>, View1<T>, View1<T>);           \
  template void rmsnorm_forward<T>(ExecSpace const&, View2<T const>, View1<T const>, double, View2<T>, View1<T>);     \
  template void rmsnorm_backward<T>(ExecSpace const&, View2<T const>, View2<T const>, View1<T const>, View1<T const>, \
                                    Store, View2<T>, View1<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
