// SPDX-License-Identifier: Apache-2.0
#pragma once
// GEMMs on plain host memory, for kernels that run on the host and have threads of their own.

#include <p3d/linalg/gemm_choice.hpp>
#include <p3d/linalg/op.hpp>

#include <cstdint>

namespace p3d::linalg {

/// C = alpha op(A) op(B) + beta C, row-major. lda, ldb and ldc are the elements from one row to the next; the shapes
/// are those of gemm. It calls the library and nothing else, so it may be called from inside a host-parallel region
/// (under SingleThreadedBlas). Whatever `library` says, a C of one row, and double, are computed by the BLAS.
/// Instantiated for float and double.
template <class T>
void host_gemm(HostLibrary library, Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
               T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

/// host_gemm by the library that gemm_choice() has for GEMMs of no linear layer.
template <class T>
void host_gemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a, std::int64_t lda,
               T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

}  // namespace p3d::linalg
