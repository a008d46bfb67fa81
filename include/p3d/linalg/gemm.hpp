// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products: the BLAS on the host, elsewhere Kokkos-Kernels (which calls the vendor's library).

#include <p3d/device/view.hpp>
#include <p3d/linalg/blas_threads.hpp>

namespace p3d::linalg {

using device::ExecSpace;
using device::View2;

enum class Op : char { none = 'N', transpose = 'T' };

/// C = alpha op(A) op(B) + beta C, row-major, row strides as given (column ranges of wider matrices are fine, no
/// copies). Shapes: op(A) [m, k], op(B) [k, n], C [m, n]. Asynchronous with respect to `exec` on devices. beta = 0
/// overwrites C (NaN in C does not matter). An empty k scales C by beta. On the host each of Kokkos' threads does a
/// slice of C, with the BLAS in one thread. Explicitly instantiated for float and double.
template <class T>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c);

}  // namespace p3d::linalg
