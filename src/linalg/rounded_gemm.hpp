// SPDX-License-Identifier: Apache-2.0
#pragma once
// fp32 GEMMs on the host whose operands are rounded to 16 bits first (p3d/linalg/operands.hpp). No Kokkos.

#include <p3d/linalg/gemm_choice.hpp>
#include <p3d/linalg/operands.hpp>

#include <cstdint>

namespace p3d::linalg::detail {

/// The type that round_operands() chose.
Operands operands();

/// C = alpha op(A) op(B) + beta C on plain memory, row-major, as host_gemm has it. m, n and k are positive.
struct RoundedGemm {
  Op op_a, op_b;
  std::int64_t m, n, k;
  float alpha;
  float const* a;
  std::int64_t lda;  ///< elements from one row to the next, one at least
  float const* b;
  std::int64_t ldb;
  float beta;
  float* c;
  std::int64_t ldc;
};

/// Computes it with operands rounded to bf16 or fp16, panel by panel, in memory that each thread takes at its first
/// call and keeps (base::panel_floats).
void rounded_gemm(Operands to, RoundedGemm const& product);

/// host_gemm without rounding.
template <class T>
void plain_host_gemm(HostLibrary library, Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                     T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

}  // namespace p3d::linalg::detail
