// SPDX-License-Identifier: Apache-2.0
// Copies of tokens' rows to the order of experts, and sums of experts' results back to the tokens.
#include <p3d/kernels/routing.hpp>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// A gate of 1 for every slot, for permute_rows_backward.
struct NoGates {
  KOKKOS_INLINE_FUNCTION float operator()(std::int64_t, int) const { return 1; }
};

/// y[t] = the sum over the slots in order, kept in Acc<S> for a chunk of columns and rounded once.
template <class S, class Gates>
void sum_slots(std::string const& label, ExecSpace const& exec, View2<S const> rows, View2<int const> place,
               Gates const& gates, Store store, View2<S> y) {
  P3D_REQUIRE(place.extent(0) == y.extent(0) && rows.extent(1) == y.extent(1), "shapes of a combine do not fit");
  auto const top_k = static_cast<int>(place.extent(1));
  bool const adds = store == Store::add;
  for_chunks<wide<S>>(
      label, exec, y.extent(0), y.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t c, int n) {
        using A = Acc<S>;
        constexpr int W = wide<S>;
        A sum[W] = {};
        auto out = write<W>(&y(t, c), n);
        for (int k = 0; k < top_k; ++k) {
          std::int64_t const i = place(t, k);
          if (i < 0) continue;
          auto const x = read<W>(&rows(i, c), n);
          A const gate = static_cast<A>(gates(t, k));
          P3D_SIMD
          for (int j = 0; j < lanes<W>(n); ++j) sum[j] += gate * static_cast<A>(x[j]);
        }
        if (adds) {
          auto const old = read<W>(&y(t, c), n);
          P3D_SIMD
          for (int j = 0; j < lanes<W>(n); ++j) sum[j] += static_cast<A>(old[j]);
        }
        P3D_SIMD
        for (int j = 0; j < lanes<W>(n); ++j) put(out[j], sum[j]);
        out.store();
      });
}

}  // namespace

template <class S>
void permute_rows(ExecSpace const& exec, View2<S const> x, View1<int const> slots, int top_k, View2<S> out) {
  P3D_REQUIRE(slots.extent(0) == out.extent(0) && x.extent(1) == out.extent(1), "shapes of a permutation do not fit");
  for_chunks<wide<S>>(
      "p3d::kernels::permute_rows", exec, out.extent(0), out.extent(1),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t c, int n) {
        int const slot = slots(i);
        auto y = write<wide<S>>(&out(i, c), n);
        if (slot < 0) {
          for (int j = 0; j < lanes<wide<S>>(n); ++j) put(y[j], Acc<S>(0));
        } else {
          auto const from = read<wide<S>>(&x(slot / top_k, c), n);
          P3D_SIMD
          for (int j = 0; j < lanes<wide<S>>(n); ++j) put(y[j], from[j]);
        }
        y.store();
      });
}

template <class S>
void permute_rows_backward(ExecSpace const& exec, View2<S const> d_rows, View2<int const> place, Store store,
                           View2<S> dx) {
  sum_slots<S>("p3d::kernels::permute_rows_backward", exec, d_rows, place, NoGates(), store, dx);
}

template <class S>
void combine(ExecSpace const& exec, View2<S const> expert_out, View2<int const> place, View2<Acc<S> const> gates,
             Store store, View2<S> y) {
  sum_slots<S>("p3d::kernels::combine", exec, expert_out, place, gates, store, y);
}

template <class S>
void combine_backward(ExecSpace const& exec, View2<S const> expert_out, View2<int const> place,
                      View2<Acc<S> const> gates, View2<S const> dy, View2<S> d_expert_out, View2<Acc<S>> d_gates) {
  P3D_REQUIRE(place.extent(0) == dy.extent(0) && expert_out.extent(1) == dy.extent(1),
              "shapes of a combine do not fit");
  auto const top_k = static_cast<std::int64_t>(place.extent(1)), cols = static_cast<std::int64_t>(dy.extent(1));
  for_rows(
      "p3d::kernels::combine_backward", exec, place.extent(0) * top_k,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t slot) {
        using A = Acc<S>;
        std::int64_t const t = slot / top_k, k = slot - t * top_k, i = place(t, k);
        if (i < 0) {
          once(team, [&] { d_gates(t, k) = 0; });
          return;
        }
        S const* const g = &dy(t, 0);
        S const* const out = &expert_out(i, 0);
        S* const dx = &d_expert_out(i, 0);
        A const gate = gates(t, k);
        // The whole row is read before any of it is written: d_expert_out may be expert_out.
        A const sum =
            sum_of<A>(team, cols, [=](std::int64_t c) { return static_cast<A>(g[c]) * static_cast<A>(out[c]); });
        each(team, cols, [=](std::int64_t c) { put(dx[c], gate * static_cast<A>(g[c])); });
        once(team, [&] { d_gates(t, k) = sum; });
      });
}

#define P3D_INSTANTIATE(S)                                                                                            \
  template void permute_rows<S>(ExecSpace const&, View2<S const>, View1<int const>, int, View2<S>);                   \
  template void permute_rows_backward<S>(ExecSpace const&, View2<S const>, View2<int const>, Store, View2<S>);        \
  template void combine<S>(ExecSpace const&, View2<S const>, View2<int const>, View2<Acc<S> const>, Store, View2<S>); \
  template void combine_backward<S>(ExecSpace const&, View2<S const>, View2<int const>, View2<Acc<S> const>,          \
                                    View2<S const>, View2<S>, View2<Acc<S>>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
