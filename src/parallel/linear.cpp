// SPDX-License-Identifier: Apache-2.0
// Column-parallel and row-parallel linear layers: a GEMM, and the message before or after it. The row-parallel forward
// pass hides one half of its all-reduce behind the other half's GEMM.
#include <p3d/parallel/linear.hpp>

#include <p3d/base/poll.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/parallel/rows.hpp>

#include <algorithm>
#include <utility>

namespace p3d::parallel {

using linalg::Op;

namespace {

/// C = op(A) op(B) + beta C.
template <class S, class C>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, View2<S const> a, View2<S const> b, double beta, View2<C> c) {
  using Sum = device::accumulate_t<S>;
  if constexpr (std::is_same_v<S, Sum>) {
    linalg::gemm<S>(exec, op_a, op_b, S(1), a, b, static_cast<S>(beta), c);
  } else {
    linalg::gemm<S, C>(exec, op_a, op_b, Sum(1), a, b, static_cast<Sum>(beta), c);
    base::poll();  // GEMMs of float and double poll by themselves: messages of the last action begin when its kernels
                   // have ended
  }
}

/// Rows [begin, end) of a contiguous matrix.
template <class View>
auto rows(View const& x, std::int64_t begin, std::int64_t end) {
  return View(x.data() + begin * static_cast<std::int64_t>(x.extent(1)), end - begin, x.extent(1));
}

}  // namespace

template <class S>
void column_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View1<S const> bias, View2<S> y) {
  bool const has_bias = bias.extent(0) != 0;
  if (has_bias) kernels::fill_with_bias<S>(tp.exec, y, bias);
  gemm<S, S>(tp.exec, Op::none, Op::transpose, x, w, has_bias ? 1 : 0, y);
}

template <class S>
comm::Request column_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx) {
  gemm<S, S>(tp.exec, Op::none, Op::none, dy, w, 0, dx);
  return start_sum_rows<S>(tp, dx);
}

template <class S>
void row_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y) {
  if (tp.sequence) {  // halves would each have fewer owners, and take as long as the whole
    gemm<S, S>(tp.exec, Op::none, Op::transpose, x, w, 0, y);
    start_sum_rows<S>(tp, y).wait();
    return;
  }
  auto const tokens = static_cast<std::int64_t>(y.extent(0));
  bool const cut = tp.size() > 1 && static_cast<std::int64_t>(y.size() * sizeof(S)) >= tp.overlap.chunked_bytes;
  auto const chunks = cut ? std::clamp<std::int64_t>(tokens, 1, tp.overlap.chunks) : 1;
  comm::Request travelling;  // the sum of the last chunk, while the next one is computed
  for (std::int64_t i = 0; i < chunks; ++i) {
    auto const begin = tokens * i / chunks, end = tokens * (i + 1) / chunks;
    gemm<S, S>(tp.exec, Op::none, Op::transpose, rows(x, begin, end), w, 0, rows(y, begin, end));
    auto sum = collectives::start_all_reduce<S>(tp.exec, *tp.comm, device::flat(rows(y, begin, end)));
    if (travelling.active()) travelling.wait();
    travelling = std::move(sum);
  }
  travelling.wait();
}

template <class S>
void row_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx,
                               kernels::Store store) {
  local_linear_backward_input<S>(tp, dy, w, dx, store);
}

template <class S>
void local_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y) {
  gemm<S, S>(tp.exec, Op::none, Op::transpose, x, w, 0, y);
}

template <class S, class T>
void local_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, kernels::Given<View2<T>> dx,
                                 kernels::Store store) {
  gemm<S, T>(tp.exec, Op::none, Op::none, dy, w, store == kernels::Store::add ? 1 : 0, dx);
}

template <class S, class G>
void linear_backward_weight(ExecSpace const& exec, View2<S const> dy, View2<S const> x, kernels::Given<View2<G>> dw) {
  gemm<S, G>(exec, Op::transpose, Op::none, dy, x, 1, dw);
}

#define P3D_INSTANTIATE(S)                                                                                           \
  template void column_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View1<S const>, View2<S>); \
  template comm::Request column_linear_backward_input<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>); \
  template void row_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>);                    \
  template void row_linear_backward_input<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>,              \
                                             kernels::Store);                                                        \
  template void local_linear_forward<S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>);                  \
  template void local_linear_backward_input<S, S>(TensorParallel&, View2<S const>, View2<S const>, View2<S>,         \
                                                  kernels::Store);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE
#if P3D_16BIT
template void local_linear_backward_input<device::bfloat16, float>(TensorParallel&, View2<device::bfloat16 const>,
                                                                   View2<device::bfloat16 const>, View2<float>,
                                                                   kernels::Store);
template void local_linear_backward_input<device::float16, float>(TensorParallel&, View2<device::float16 const>,
                                                                  View2<device::float16 const>, View2<float>,
                                                                  kernels::Store);
#endif
#define P3D_INSTANTIATE(P) P3D_INSTANTIATE_FOR(P::Storage, P::Gradient)
#define P3D_INSTANTIATE_FOR(S, G)                                                              \
  template void linear_backward_weight<S, G>(ExecSpace const&, View2<S const>, View2<S const>, \
                                             kernels::Given<View2<G>>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE_FOR
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
