// SPDX-License-Identifier: Apache-2.0
#pragma once
// GEMMs on plain host memory, for kernels that run on the host and make their own threads.

#include <p3d/linalg/gemm_choice.hpp>
#include <p3d/linalg/op.hpp>

#include <cstdint>

namespace p3d::linalg {

/// C = alpha op(A) op(B) + beta C, row-major; ld*: elements from one row to the next. Shapes as in gemm. Calls the
/// library and nothing else, so it may be called from inside a host-parallel region (under SingleThreadedBlas). One
/// row, and double, are the BLAS' whatever `library` says. float and double.
template <class T>
void host_gemm(HostLibrary library, Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
               T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

/// The same by the library of gemm_choice() for what is no linear layer's.
template <class T>
void host_gemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a, std::int64_t lda,
               T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

}  // namespace p3d::linalg
