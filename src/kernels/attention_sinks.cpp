// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/attention_sinks.hpp>

#include "launch.hpp"

namespace p3d::kernels {

template <class S, class O>
void attention_sinks_forward(ExecSpace const& exec, AttentionShape const& shape, View1<S const> sinks, HeadRows<O> out,
                             View1<Acc<S>> lse) {
  P3D_REQUIRE(static_cast<std::int64_t>(sinks.extent(0)) == shape.heads, "every head has a sink");
  std::int64_t const heads = shape.heads, columns = shape.values(), queries = shape.queries.size();
  for_rows(
      "p3d::kernels::attention_sinks_forward", exec, shape.samples * queries * heads,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t i) {
        using A = Acc<S>;
        std::int64_t const row = i / heads, head = i - row * heads, sample = row / queries;
        std::int64_t const at = (sample * heads + head) * queries + row - sample * queries;
        A const before = lse(at), sink = static_cast<A>(sinks(head)), top = before > sink ? before : sink;
        A const after = top + std::log(exp_of(before - top) + exp_of(sink - top)), factor = exp_of(before - after);
        O* const y = out.data + row * out.stride + head * columns;
        each(team, columns, [=](std::int64_t d) { put(y[d], static_cast<A>(y[d]) * factor); });
        wait_for_team(team);
        once(team, [&] { lse(at) = after; });
      },
      columns);
}

template <class S, class G>
void attention_sinks_backward(ExecSpace const& exec, AttentionShape const& shape, View1<S const> sinks,
                              View1<Acc<S> const> lse, View1<Acc<S> const> delta, Given<View1<G>> given) {
  std::int64_t const heads = shape.heads, queries = shape.queries.size(), n = shape.samples * queries;
  View1<G> const d_sinks = given;  // captured by value
  for_rows(
      "p3d::kernels::attention_sinks_backward", exec, heads,
      KOKKOS_LAMBDA(RowTeam const& team, std::int64_t head) {
        using A = Acc<S>;
        A const sink = static_cast<A>(sinks(head));
        double const sum = sum_of<double>(team, n, [=](std::int64_t i) {
          std::int64_t const sample = i / queries, at = (sample * heads + head) * queries + i - sample * queries;
          return static_cast<double>(exp_of(sink - lse(at))) * static_cast<double>(delta(at));
        });
        once(team, [&] { put(d_sinks(head), static_cast<Acc<G>>(static_cast<double>(d_sinks(head)) - sum)); });
      },
      n);
}

#define P3D_INSTANTIATE(S, O)                                                                                       \
  template void attention_sinks_forward<S, O>(ExecSpace const&, AttentionShape const&, View1<S const>, HeadRows<O>, \
                                              View1<Acc<S>>);
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(bfloat16, bfloat16)
P3D_INSTANTIATE(float16, float16)
P3D_INSTANTIATE(bfloat16, float)
P3D_INSTANTIATE(float16, float)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(S, G)                                                                           \
  template void attention_sinks_backward<S, G>(ExecSpace const&, AttentionShape const&, View1<S const>, \
                                               View1<Acc<S> const>, View1<Acc<S> const>, Given<View1<G>>);
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(bfloat16, float)
P3D_INSTANTIATE(float16, float)
P3D_INSTANTIATE(bfloat16, bfloat16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
