#include <p3d/parallel/linear.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/linalg/gemm.hpp>

namespace p3d::parallel {

using linalg::Op;

template <class T>
void column_linear_forward(TensorParallel& tp, View2<T const> x, View2<T const> w, View1<T const> bias, View2<T> y) {
  linalg::gemm<T>(tp.exec, Op::none, Op::transpose, T(1), x, w, T(0), y);
  kernels::add_bias<T>(tp.exec, y, bias);
}

template <class T>
comm::Request column_linear_backward_input(TensorParallel& tp, View2<T const> dy, View2<T const> w, View2<T> dx) {
  linalg::gemm<T>(tp.exec, Op::none, Op::none, T(1), dy, w, T(0), dx);
  return collectives::start_all_reduce<T>(tp.exec, *tp.comm, device::flat(dx));
}

template <class T>
void row_linear_forward(TensorParallel& tp, View2<T const> x, View2<T const> w, View2<T> y) {
  linalg::gemm<T>(tp.exec, Op::none, Op::transpose, T(1), x, w, T(0), y);
  collectives::all_reduce<T>(tp.exec, *tp.comm, device::flat(y));
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

#define P3D_INSTANTIATE(T)                                                                                              \
  template void column_linear_forward<T>(TensorParallel&, View2<T const>, View2<T const>, View1<T const>, View2<T>);    \
  template comm::Request column_linear_backward_input<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>);    \
  template void row_linear_forward<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>);                       \
  template void row_linear_backward_input<T>(TensorParallel&, View2<T const>, View2<T const>, View2<T>);                \
  template void linear_backward_weight<T>(ExecSpace const&, View2<T const>, View2<T const>, View2<T>, View1<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
