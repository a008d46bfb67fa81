// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/expert_linear.hpp>

#include <p3d/linalg/grouped_gemm.hpp>

#include <type_traits>

namespace p3d::parallel {

using kernels::Store;
using linalg::Op;

namespace {

/// C = A op(B) + beta C.
template <class S, class C>
void multiply(ExecSpace const& exec, Op op_b, View2<S const> a, View2<S const> b, int beta, View2<C> c) {
  using Sum = device::accumulate_t<S>;
  if constexpr (std::is_same_v<S, Sum>) {
    linalg::gemm<S>(exec, Op::none, op_b, S(1), a, b, static_cast<S>(beta), c);
  } else {
    linalg::gemm<S, C>(exec, Op::none, op_b, Sum(1), a, b, static_cast<Sum>(beta), c);
  }
}

}  // namespace

template <class S, class C>
void linear_forward(ExecSpace const& exec, View2<S const> x, View2<S const> w, View2<C> y) {
  multiply<S, C>(exec, Op::transpose, x, w, 0, y);
}

template <class S>
void linear_backward_input(ExecSpace const& exec, View2<S const> dy, View2<S const> w, Store store, View2<S> dx) {
  multiply<S, S>(exec, Op::none, dy, w, store == Store::add ? 1 : 0, dx);
}

template <class S>
void expert_linear(ExecSpace const& exec, View2<S const> x, View2<S const> w, Block block,
                   std::span<std::int64_t const> offsets, Store store, View2<S> y) {
  using Sum = device::accumulate_t<S>;
  auto const op = block == Block::transposed ? Op::transpose : Op::none;
  Sum const beta = store == Store::add ? 1 : 0;
  if constexpr (std::is_same_v<S, Sum>) {
    linalg::grouped_gemm<S>(exec, op, S(1), x, w, beta, y, offsets);
  } else {
    linalg::grouped_gemm<S, S>(exec, op, Sum(1), x, w, beta, y, offsets);
  }
}

template <class S, class G>
void expert_linear_weight(ExecSpace const& exec, View2<S const> a, View2<S const> b,
                          std::span<std::int64_t const> offsets, View2<G> dw) {
  using Sum = device::accumulate_t<S>;
  if constexpr (std::is_same_v<S, Sum>) {
    linalg::grouped_gemm_weight<S>(exec, S(1), a, b, S(1), dw, offsets);
  } else {
    linalg::grouped_gemm_weight<S, G>(exec, Sum(1), a, b, Sum(1), dw, offsets);
  }
}

#define P3D_INSTANTIATE(S)                                                                                   \
  template void linear_forward<S, device::accumulate_t<S>>(ExecSpace const&, View2<S const>, View2<S const>, \
                                                           View2<device::accumulate_t<S>>);                  \
  template void linear_backward_input<S>(ExecSpace const&, View2<S const>, View2<S const>, Store, View2<S>); \
  template void expert_linear<S>(ExecSpace const&, View2<S const>, View2<S const>, Block,                    \
                                 std::span<std::int64_t const>, Store, View2<S>);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#define P3D_INSTANTIATE(P) P3D_INSTANTIATE_FOR(P::Storage, P::Gradient)
#define P3D_INSTANTIATE_FOR(S, G)                                                            \
  template void expert_linear_weight<S, G>(ExecSpace const&, View2<S const>, View2<S const>, \
                                           std::span<std::int64_t const>, View2<G>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE_FOR
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
