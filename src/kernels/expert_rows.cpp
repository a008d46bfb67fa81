// SPDX-License-Identifier: Apache-2.0
// Kernels on the rows of one expert: gates, partial results of several ranks, jitter. Results of several ranks are
// added in the order of the ranks, so that bits do not depend on when they arrive.
//
// Example: with 2 slots and copies = 2, a slot at place 1 has its partial results at rows 1 (rank 0) and 3 (rank 1).
#include <p3d/kernels/expert_rows.hpp>

#include "random_words.hpp"
#include "wide.hpp"

namespace p3d::kernels {

template <class S>
void gate_rows(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act) {
  P3D_REQUIRE(gates.extent(0) == act.extent(0), "every row has a gate");
  for_chunks<wide<S>>(
      "p3d::kernels::gate_rows", exec, static_cast<std::int64_t>(act.extent(0)),
      static_cast<std::int64_t>(act.extent(1)), KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        Acc<S> const gate = gates(r);
        auto const x = read<wide<S>>(&act(r, c), n);
        auto out = write<wide<S>>(&act(r, c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], gate * static_cast<Acc<S>>(x[i]));
        out.store();
      });
}

template <class S>
void gate_rows_backward(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act, View2<S> d_act,
                        View1<Acc<S>> d_gates) {
  P3D_REQUIRE(gates.extent(0) == act.extent(0) && d_gates.extent(0) == act.extent(0) &&
                  d_act.extent(0) == act.extent(0) && d_act.extent(1) == act.extent(1),
              "every row has a gate");
  auto const cols = static_cast<std::int64_t>(act.extent(1));
  for_rows(
      "p3d::kernels::gate_rows_backward", exec, static_cast<std::int64_t>(act.extent(0)),
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
        using A = Acc<S>;
        S* const x = &act(r, 0);
        S* const d = &d_act(r, 0);
        A const gate = gates(r);
        A const sum =
            sum_of<A>(team, cols, [=](std::int64_t c) { return static_cast<A>(x[c]) * static_cast<A>(d[c]); });
        each(team, cols, [=](std::int64_t c) {
          put(x[c], gate * static_cast<A>(x[c]));
          put(d[c], gate * static_cast<A>(d[c]));
        });
        once(team, [&] { d_gates(r) = sum; });
      });
}

void places_of_copies(ExecSpace const& exec, View2<int const> place, int copies, View2<int> out) {
  auto const top_k = static_cast<std::int64_t>(place.extent(1)), tokens = static_cast<std::int64_t>(place.extent(0));
  P3D_REQUIRE(out.extent(0) == place.extent(0) && static_cast<std::int64_t>(out.extent(1)) == top_k * copies,
              "every slot has a place for each copy");
  int const slots = static_cast<int>(tokens * top_k);
  launch_kernel(
      "p3d::kernels::places_of_copies", FlatRange(exec, 0, tokens * top_k), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const t = i / top_k, k = i - t * top_k;
        for (int c = 0; c < copies; ++c) out(t, k * copies + c) = place(t, k) < 0 ? -1 : c * slots + place(t, k);
      });
}

template <class A>
void sum_copies(ExecSpace const& exec, View1<A const> values, View2<int const> places, int copies, View2<A> sums) {
  auto const top_k = static_cast<std::int64_t>(sums.extent(1)), tokens = static_cast<std::int64_t>(sums.extent(0));
  P3D_REQUIRE(places.extent(0) == sums.extent(0) && static_cast<std::int64_t>(places.extent(1)) == top_k * copies,
              "every slot has a place for each copy");
  launch_kernel(
      "p3d::kernels::sum_copies", FlatRange(exec, 0, tokens * top_k), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const t = i / top_k, k = i - t * top_k;
        A sum = 0;
        for (int c = 0; c < copies; ++c)
          if (int const at = places(t, k * copies + c); at >= 0) sum += values(at);
        sums(t, k) = sum;
      });
}

template <class S>
void sum_blocks(ExecSpace const& exec, View2<S const> blocks, int count, Store store, View2<S> out) {
  auto const columns = static_cast<std::int64_t>(out.extent(1)), rows = static_cast<std::int64_t>(out.extent(0));
  auto const each = static_cast<std::int64_t>(blocks.extent(0)) / count;
  P3D_REQUIRE(static_cast<std::int64_t>(blocks.extent(1)) == columns && rows <= each, "blocks are of rows of out");
  launch_kernel(
      "p3d::kernels::sum_blocks", FlatRange(exec, 0, rows * columns), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const r = i / columns, c = i - r * columns;
        Acc<S> sum = 0;
        for (int b = 0; b < count; ++b) sum += static_cast<Acc<S>>(blocks(b * each + r, c));
        if (store == Store::add) sum += static_cast<Acc<S>>(out(r, c));
        out(r, c) = static_cast<S>(sum);
      });
}

template <class A>
void sigmoid_in_place(ExecSpace const& exec, View1<A> x) {
  launch_kernel(
      "p3d::kernels::sigmoid_in_place", FlatRange(exec, 0, x.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { x(i) = sigmoid(x(i)); });
}

template <class A>
void sigmoid_backward(ExecSpace const& exec, View1<A const> y, View1<A> d) {
  launch_kernel(
      "p3d::kernels::sigmoid_backward", FlatRange(exec, 0, d.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { d(i) *= y(i) * (A(1) - y(i)); });
}

template <class A>
void scale(ExecSpace const& exec, A factor, View1<A> x) {
  launch_kernel(
      "p3d::kernels::scale", FlatRange(exec, 0, x.extent(0)), KOKKOS_LAMBDA(std::int64_t i) { x(i) *= factor; });
}

template <class S>
void jitter_rows(ExecSpace const& exec, TokenRows rows, base::RandomKey key, double jitter, View2<S const> x,
                 View2<S> y) {
  P3D_REQUIRE(x.extent(0) == y.extent(0) && x.extent(1) == y.extent(1), "both have one shape");
  auto const cols = static_cast<std::int64_t>(x.extent(1));
  for_chunks<wide<S>>(
      "p3d::kernels::jitter_rows", exec, static_cast<std::int64_t>(x.extent(0)), cols,
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        using A = Acc<S>;
        auto const stream = static_cast<std::uint64_t>(rows.first_sample + (rows.first_row + r) / rows.seq_len);
        auto const first = static_cast<std::uint64_t>(rows.index(r) * cols + c);
        std::uint32_t words[wide<S>];
        random_words(key, stream, first, n, words);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          double const factor = 1.0 + jitter * (2.0 * (static_cast<double>(words[i]) + 0.5) / 4294967296.0 - 1.0);
          put(y(r, c + i), static_cast<A>(factor) * static_cast<A>(x(r, c + i)));
        }
      });
}

#define P3D_INSTANTIATE(S)                                                                                       \
  template void gate_rows<S>(ExecSpace const&, View1<Acc<S> const>, View2<S>);                                   \
  template void gate_rows_backward<S>(ExecSpace const&, View1<Acc<S> const>, View2<S>, View2<S>, View1<Acc<S>>); \
  template void jitter_rows<S>(ExecSpace const&, TokenRows, base::RandomKey, double, View2<S const>, View2<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE
template void sigmoid_in_place<float>(ExecSpace const&, View1<float>);
template void sigmoid_in_place<double>(ExecSpace const&, View1<double>);
template void sigmoid_backward<float>(ExecSpace const&, View1<float const>, View1<float>);
template void sigmoid_backward<double>(ExecSpace const&, View1<double const>, View1<double>);
template void scale<float>(ExecSpace const&, float, View1<float>);
template void scale<double>(ExecSpace const&, double, View1<double>);
template void sum_copies<float>(ExecSpace const&, View1<float const>, View2<int const>, int, View2<float>);
template void sum_copies<double>(ExecSpace const&, View1<double const>, View2<int const>, int, View2<double>);

template void sum_blocks<float>(ExecSpace const&, View2<float const>, int, Store, View2<float>);
template void sum_blocks<double>(ExecSpace const&, View2<double const>, int, Store, View2<double>);
template void sum_blocks<bfloat16>(ExecSpace const&, View2<bfloat16 const>, int, Store, View2<bfloat16>);
template void sum_blocks<float16>(ExecSpace const&, View2<float16 const>, int, Store, View2<float16>);

}  // namespace p3d::kernels
