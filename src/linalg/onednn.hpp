// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fp32 GEMM of oneDNN. A build without the library has these functions too (no_onednn.cpp). No Kokkos.

#include <p3d/linalg/op.hpp>

#include <cstdint>

namespace p3d::linalg::detail {

/// True where oneDNN is there and uses the processor's AVX-512 units.
bool onednn_has_avx512();

/// C = alpha op(A) op(B) + beta C, row-major, as host_gemm, in the caller's thread alone. beta = 0 overwrites C. Throws
/// base::Error where oneDNN refuses. For each call oneDNN takes a buffer for packed panels (16 MB at most) from the
/// heap; its GEMM cannot be given one. Its matmul primitive can, but is slower: beside OpenBLAS 0.93 to 1.13 of the
/// speed for forward GEMMs, 0.3 to 1.0 for gradients, and post-operations (bias, residual) gain nothing.
void onednn_sgemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a,
                  std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);

}  // namespace p3d::linalg::detail
