// SPDX-License-Identifier: Apache-2.0
// GEMMs on NVIDIA's GPUs. There is no Kokkos here: nvcc alone compiles it (tests/platforms/vendor_gemm.sh).

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <climits>

#include "gemm16.hpp"
#include "vendor_gemm.hpp"

namespace p3d::linalg::detail {

namespace {

void check(cublasStatus_t status, char const* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw base::Error(
      {.expected = fmt::format("{} to succeed", call),
       .found = fmt::format("cuBLAS status {}", static_cast<int>(status)),
       .where = "a GEMM",
       .fix = "look for an earlier error of this GPU; where its memory is full, make batch.micro smaller"});
}

cublasHandle_t handle = nullptr;

int to_int(std::int64_t size) {
  P3D_REQUIRE(size <= INT_MAX,
              "cuBLAS counts in 32 bits: a matrix has more than 2^31 rows, columns or elements in a row");
  return static_cast<int>(size);
}

/// The library's state, which is made at the first GEMM, set to work on `stream`.
cublasHandle_t on_stream(void* stream) {
  if (handle == nullptr) {
    check(cublasCreate(&handle), "cublasCreate");
    // Where a sum over k is cut into parts, the parts too are kept and added in float.
    check(cublasSetMathMode(handle, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                              CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
          "cublasSetMathMode");
  }
  check(cublasSetStream(handle, static_cast<cudaStream_t>(stream)), "cublasSetStream");
  return handle;
}

cublasOperation_t mode(Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; }

cudaDataType_t type_of(Element e) {
  switch (e) {
    case Element::float64: return CUDA_R_64F;
    case Element::float32: return CUDA_R_32F;
    case Element::bfloat16: return CUDA_R_16BF;
    case Element::float16: return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

/// The units for products of fp32 matrices.
cublasComputeType_t compute_of(Operands operands) {
  switch (operands) {
    case Operands::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Operands::bf16: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case Operands::fp16: return CUBLAS_COMPUTE_32F_FAST_16F;
    case Operands::fp32: break;
  }
  return CUBLAS_COMPUTE_32F;
}

}  // namespace

void vendor_gemm(void* stream, Gemm16 const& g) {
  auto const narrow = g.type == Type16::bfloat16 ? CUDA_R_16BF : CUDA_R_16F;
  // cuBLAS sees columns where p3d has rows, so it computes C^T = op(B)^T op(A)^T.
  check(cublasGemmEx(on_stream(stream), mode(g.op_b), mode(g.op_a), to_int(g.n), to_int(g.m), to_int(g.k), &g.alpha,
                     g.b, narrow, to_int(g.ldb), g.a, narrow, to_int(g.lda), &g.beta, g.c,
                     g.wide_c ? CUDA_R_32F : narrow, to_int(g.ldc), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

void vendor_batched_gemm(void* stream, BatchedGemm const& g) {
  bool const wide = g.type == Element::float64;
  auto const single_alpha = static_cast<float>(g.alpha), single_beta = static_cast<float>(g.beta);
  void const* const alpha = wide ? static_cast<void const*>(&g.alpha) : &single_alpha;
  void const* const beta = wide ? static_cast<void const*>(&g.beta) : &single_beta;
  auto const compute = wide                         ? CUBLAS_COMPUTE_64F
                       : g.type == Element::float32 ? compute_of(g.operands)
                                                    : CUBLAS_COMPUTE_32F;
  check(cublasGemmStridedBatchedEx(on_stream(stream), mode(g.op_b), mode(g.op_a), to_int(g.n), to_int(g.m), to_int(g.k),
                                   alpha, g.b, type_of(g.type), to_int(g.ldb), g.stride_b, g.a, type_of(g.type),
                                   to_int(g.lda), g.stride_a, beta, g.c, type_of(g.type_c), to_int(g.ldc), g.stride_c,
                                   to_int(g.batch), compute, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
}

char const* vendor_method() { return "cublasGemmEx, sums in float"; }

void release_vendor() {
  if (handle != nullptr) cublasDestroy(handle);
  handle = nullptr;
}

}  // namespace p3d::linalg::detail
