// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/linear.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/linalg/gemm.hpp>

namespace p3d::parallel {

using linalg::Op;

namespace {

/// Sums shorter than this are not cut: below it the time is latency, and each part pays that again.
constexpr std::int64_t overlap_bytes = 1 << 20;

template <class View>
auto rows(View const& x, std::int64_t begin, std::int64_t end) {
  return View(x.data() + begin * static_cast<std::int64_t>(x.extent(1)), end - begin, x.extent(1));
}

}  // namespace

template <class T>
void column_linear_forward(TensorParallel& tp, View2<T const> x, View2<T const> w, View1<T const> bias, View2<T> y) {
  bool const has_bias = bias.extent(0) != 0;
  if (has_bias) kernels::fill_with_bias<T>(tp.exec, y, bias);
  linalg::gemm<T>(tp.exec, Op::none, Op::transpose, T(1), x, w, has_bias ? T(1) : T(0), y);
}

template <class T>
comm::Request column_linear_backward_input(TensorParallel& tp, View2<T const> dy, View2<T const> w, View2<T> dx) {
  linalg::gemm<T>(tp.exec, Op::none, Op::none, T(1), dy, w, T(0), dx);
  return collectives::start_all_reduce<T>(tp.exec, *tp.comm, device::flat(dx));
}

template <class T>
void row_linear_forward(TensorParallel& tp, View2<T const> x, View2<T const> w, View2<T> y) {
  auto const tokens = static_cast<std::int64_t>(y.extent(0));
  bool const cut = tp.size() > 1 && static_cast<std::int64_t>(y.size() * sizeof(T)) >= overlap_bytes;
  auto const half = cut ? tokens / 2 : tokens;
  linalg::gemm<T>(tp.exec, Op::none, Op::transpose, T(1), rows(x, 0, half), w, T(0), rows(y, 0, half));
  auto first = collectives::start_all_reduce<T>(tp.exec, *tp.comm, device::flat(rows(y, 0, half)));
  if (half < tokens) {  // the sum of the first half travels while the second is computed
    linalg::gemm<T>(tp.exec, Op::none, Op::transpose, T(1), rows(x, half, tokens), w, T(0), rows(y, half, tokens));
    if (first.active()) first.test();
    collectives::all_reduce<T>(tp.exec, *tp.comm, device::flat(rows(y, half, tokens)));
  }
  first.wait();
}

template <class T>
void row_linear_backward_input(TensorParallel& tp, View2<T const> dy, View2<T const> w, View2<T> dx) {
  linalg::gemm<T>(tp.exec, Op::none, Op::none, T(1), dy, w, T(0), dx);
}

template <class T>
void linear_backward_weight(ExecSpace const& exec, View2<T const> dy, View2<T const> x, View2<T> dw, View1<T> dbias) {
  linalg::gemm<T>(exec, Op::transpose, Op::none, T(1), dy, x, T(1), dw);
  kernels::bias_backward<T>(exec, dy, dbias);
}

#define P3D_INSTANTIATE(T)                                                                                           \
  template void column_linear_forward<T>(TensorParallel&, View2<T const>, View2<T const>, View1<T const>, View2<T>); \
  template comm::Request column_linear_backward_input<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>); \
  template void row_linear_forward<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>);                    \
  template void row_linear_backward_input<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>);             \
  template void linear_backward_weight<T>(ExecSpace const&, View2<T const>, View2<T const>, View2<T>, View1<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
