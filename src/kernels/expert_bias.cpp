// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/expert_bias.hpp>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// The expert of row r: the last one whose rows begin at r or before, among those that have rows.
KOKKOS_INLINE_FUNCTION std::int64_t expert_of(View1<int const> const& offsets, std::int64_t r) {
  std::int64_t low = 0, high = static_cast<std::int64_t>(offsets.extent(0)) - 1;
  while (high - low > 1) {
    std::int64_t const middle = (low + high) / 2;
    (offsets(middle) <= r ? low : high) = middle;
  }
  return low;
}

template <class S>
void require_shapes(View1<int const> const& offsets, View2<S const> const& bias, std::size_t columns) {
  P3D_REQUIRE(bias.extent(0) + 1 == offsets.extent(0) && bias.extent(1) == columns, "every expert has a bias");
}

}  // namespace

template <class S>
void add_expert_bias(ExecSpace const& exec, View1<int const> offsets, View2<S const> bias,
                     Given<View1<Acc<S> const>> given, View2<S> x) {
  require_shapes(offsets, bias, x.extent(1));
  View1<Acc<S> const> const gates = given;  // captured by value
  for_chunks<wide<S>>(
      "p3d::kernels::add_expert_bias", exec, static_cast<std::int64_t>(x.extent(0)),
      static_cast<std::int64_t>(x.extent(1)), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        using A = Acc<S>;
        A const gate = gates.extent(0) > 0 ? gates(r) : A(1);
        auto const b = read<wide<S>>(&bias(expert_of(offsets, r), c), n);
        auto const in = read<wide<S>>(&x(r, c), n);
        auto out = write<wide<S>>(&x(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], static_cast<A>(in[i]) + gate * static_cast<A>(b[i]));
        out.store();
      });
}

template <class S>
void add_bias_gates_backward(ExecSpace const& exec, View1<int const> offsets, View2<S const> bias, View2<S const> dy,
                             View1<Acc<S>> d_gates) {
  require_shapes(offsets, bias, dy.extent(1));
  P3D_REQUIRE(d_gates.extent(0) == dy.extent(0), "every row has a gate");
  auto const cols = static_cast<std::int64_t>(dy.extent(1));
  for_rows(
      "p3d::kernels::add_bias_gates_backward", exec, static_cast<std::int64_t>(dy.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        using A = Acc<S>;
        S const* const b = &bias(expert_of(offsets, r), 0);
        S const* const d = &dy(r, 0);
        A const sum =
            sum_of<A>(team, cols, [=](std::int64_t c) { return static_cast<A>(b[c]) * static_cast<A>(d[c]); });
        once(team, [&] { d_gates(r) += sum; });
      });
}

template <class S, class G>
void add_expert_bias_backward(ExecSpace const& exec, View1<int const> offsets, View2<S const> dy,
                              Given<View1<Acc<S> const>> given_gates, Given<View2<G>> given) {
  View2<G> const d_bias = given;  // captured by value
  View1<Acc<S> const> const gates = given_gates;
  P3D_REQUIRE(d_bias.extent(0) + 1 == offsets.extent(0) && d_bias.extent(1) == dy.extent(1), "every expert has a bias");
  for_chunks<column_width>(
      "p3d::kernels::add_expert_bias_backward", exec, static_cast<std::int64_t>(d_bias.extent(0)),
      static_cast<std::int64_t>(d_bias.extent(1)), KOKKOS_LAMBDA(std::int64_t e, std::int64_t c, int n) {
        double sum[column_width] = {};
        for (std::int64_t r = offsets(e); r < offsets(e + 1); ++r) {
          double const gate = gates.extent(0) > 0 ? static_cast<double>(gates(r)) : 1.0;
          S const* const d = &dy(r, c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) sum[i] += gate * static_cast<double>(d[i]);
        }
        for (int i = 0; i < n; ++i) {
          G& g = d_bias(e, c + i);
          put(g, static_cast<Acc<G>>(static_cast<double>(g) + sum[i]));
        }
      });
}

template <class S>
void add_router_bias(ExecSpace const& exec, View1<S const> bias, View2<Acc<S>> logits) {
  P3D_REQUIRE(bias.extent(0) == logits.extent(1), "every expert has a bias");
  for_chunks<element_width>(
      "p3d::kernels::add_router_bias", exec, static_cast<std::int64_t>(logits.extent(0)),
      static_cast<std::int64_t>(logits.extent(1)), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        for (int i = 0; i < n; ++i) logits(r, c + i) += static_cast<Acc<S>>(bias(c + i));
      });
}

template <class A, class G>
void add_router_bias_backward(ExecSpace const& exec, View2<A const> d_logits, Given<View1<G>> given) {
  View1<G> const d_bias = given;  // captured by value
  P3D_REQUIRE(d_bias.extent(0) == d_logits.extent(1), "every expert has a bias");
  auto const rows = static_cast<std::int64_t>(d_logits.extent(0));
  for_rows(
      "p3d::kernels::add_router_bias_backward", exec, static_cast<std::int64_t>(d_bias.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t e) {
        double const sum =
            sum_of<double>(team, rows, [=](std::int64_t r) { return static_cast<double>(d_logits(r, e)); });
        once(team, [&] { put(d_bias(e), static_cast<Acc<G>>(static_cast<double>(d_bias(e)) + sum)); });
      },
      rows);
}

#define P3D_INSTANTIATE(S)                                                                                         \
  template void add_expert_bias<S>(ExecSpace const&, View1<int const>, View2<S const>, Given<View1<Acc<S> const>>, \
                                   View2<S>);                                                                      \
  template void add_bias_gates_backward<S>(ExecSpace const&, View1<int const>, View2<S const>, View2<S const>,     \
                                           View1<Acc<S>>);                                                         \
  template void add_router_bias<S>(ExecSpace const&, View1<S const>, View2<Acc<S>>);                               \
  P3D_INSTANTIATE_GRADIENT(S, Acc<S>)
#define P3D_INSTANTIATE_GRADIENT(S, G)                                                             \
  template void add_expert_bias_backward<S, G>(ExecSpace const&, View1<int const>, View2<S const>, \
                                               Given<View1<Acc<S> const>>, Given<View2<G>>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
P3D_INSTANTIATE_GRADIENT(bfloat16, bfloat16)
#undef P3D_INSTANTIATE_GRADIENT
#undef P3D_INSTANTIATE
template void add_router_bias_backward<float, float>(ExecSpace const&, View2<float const>, Given<View1<float>>);
template void add_router_bias_backward<double, double>(ExecSpace const&, View2<double const>, Given<View1<double>>);
template void add_router_bias_backward<float, bfloat16>(ExecSpace const&, View2<float const>, Given<View1<bfloat16>>);

}  // namespace p3d::kernels
