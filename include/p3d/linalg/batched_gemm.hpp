// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many GEMMs of one shape at once, such as those of attention, one for each head. On GPUs it is one call of the
// vendor's library.

#include <p3d/device/precision.hpp>
#include <p3d/linalg/gemm.hpp>

#include <cstdint>

namespace p3d::linalg {

/// One operand of all GEMMs of a batch, row-major: `ld` elements from one row to the next, `stride` from one matrix to
/// the next. Matrices that are only read may overlap or be one and the same (stride 0).
template <class T>
struct BatchedMatrix {
  T* data = nullptr;
  std::int64_t ld = 0, stride = 0;
};

/// The number of GEMMs and the shape of each: op(A) [m, k], op(B) [k, n], C [m, n].
struct BatchedShape {
  std::int64_t batch = 0, m = 0, n = 0, k = 0;
};

/// C = alpha op(A) op(B) + beta C for every GEMM of the batch, in the precision of gemm (gemm.hpp). On devices it is
/// asynchronous with respect to `exec`. beta = 0 overwrites C; with k = 0, C is scaled by beta. A result repeats bit
/// for bit; on GPUs the vendor's library may choose another kernel, with other rounding, for another number of GEMMs.
/// On hosts one thread computes each GEMM: by the BLAS in float and double, and in 16 bits by a plain kernel, which
/// only tests call. S and C are both double or both float, or S has 16 bits and C is S or float.
template <class S, class C>
void batched_gemm(ExecSpace const& exec, Op op_a, Op op_b, BatchedShape const& shape, device::accumulate_t<S> alpha,
                  BatchedMatrix<S const> a, BatchedMatrix<S const> b, device::accumulate_t<S> beta, BatchedMatrix<C> c);

}  // namespace p3d::linalg
