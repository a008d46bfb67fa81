// SPDX-License-Identifier: Apache-2.0
#pragma once
// GEMMs of all types by a GPU vendor's library: one file for each vendor (gemm_cublas.cpp and others), compiled where
// Kokkos is for its GPUs. No Kokkos, so that these files compile by themselves.

#include <p3d/linalg/op.hpp>
#include <p3d/linalg/operands.hpp>

#include <cstdint>

#include "gemm16.hpp"

namespace p3d::linalg::detail {

enum class Element { float64, float32, bfloat16, float16 };

/// C = alpha op(A) op(B) + beta C, `batch` times, on plain memory, row-major; all sizes are positive. A and B are of
/// one type; C is of that type or, where it has 16 bits, of float32. Sums are float64 for float64 operands, else
/// float32.
struct BatchedGemm {
  Element type, type_c;
  Op op_a, op_b;
  std::int64_t batch, m, n, k;
  double alpha;
  void const* a;
  std::int64_t lda, stride_a;  ///< elements from one row to the next, one at least, and from one matrix to the next
  void const* b;
  std::int64_t ldb, stride_b;
  double beta;
  void* c;
  std::int64_t ldc, stride_c;
  Operands operands = Operands::fp32;  ///< float32 may be multiplied in this type; only NVIDIA's GPUs can
};

/// A GEMM of 16-bit matrices as a batch of one, for libraries that have no call of its own for it.
inline BatchedGemm batch_of_one(Gemm16 const& g) {
  auto const type = g.type == Type16::bfloat16 ? Element::bfloat16 : Element::float16;
  return {.type = type,
          .type_c = g.wide_c ? Element::float32 : type,
          .op_a = g.op_a,
          .op_b = g.op_b,
          .batch = 1,
          .m = g.m,
          .n = g.n,
          .k = g.k,
          .alpha = g.alpha,
          .a = g.a,
          .lda = g.lda,
          .stride_a = 0,
          .b = g.b,
          .ldb = g.ldb,
          .stride_b = 0,
          .beta = g.beta,
          .c = g.c,
          .ldc = g.ldc,
          .stride_c = g.m * g.ldc};
}

/// Computes the batch on the vendor's stream (device::native_stream). The same call gives the same bits: there are no
/// atomics.
void vendor_batched_gemm(void* stream, BatchedGemm const& gemms);

}  // namespace p3d::linalg::detail
