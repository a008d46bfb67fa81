// SPDX-License-Identifier: Apache-2.0
// GEMMs on AMD's GPUs. There is no Kokkos here.

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <rocblas/rocblas.h>

#include <climits>

#include "gemm16.hpp"
#include "vendor_gemm.hpp"

namespace p3d::linalg::detail {

namespace {

void check(rocblas_status status, char const* call) {
  if (status == rocblas_status_success) return;
  throw base::Error(
      {.expected = fmt::format("{} to succeed", call),
       .found = fmt::format("rocBLAS status {}", static_cast<int>(status)),
       .where = "a GEMM",
       .fix = "look for an earlier error of this GPU; where its memory is full, make batch.micro smaller"});
}

rocblas_handle handle = nullptr;

int to_int(std::int64_t size) {
  P3D_REQUIRE(size <= INT_MAX,
              "rocBLAS counts in 32 bits: a matrix has more than 2^31 rows, columns or elements in a row");
  return static_cast<int>(size);
}

/// The library's state, which is made at the first GEMM, set to work on `stream`.
rocblas_handle on_stream(void* stream) {
  if (handle == nullptr) {
    check(rocblas_create_handle(&handle), "rocblas_create_handle");
    // Sums that are cut over a long k are not added by atomics, whose order changes from call to call.
    check(rocblas_set_atomics_mode(handle, rocblas_atomics_not_allowed), "rocblas_set_atomics_mode");
  }
  check(rocblas_set_stream(handle, static_cast<hipStream_t>(stream)), "rocblas_set_stream");
  return handle;
}

rocblas_operation mode(Op op) { return op == Op::none ? rocblas_operation_none : rocblas_operation_transpose; }

rocblas_datatype type_of(Element e) {
  switch (e) {
    case Element::float64: return rocblas_datatype_f64_r;
    case Element::float32: return rocblas_datatype_f32_r;
    case Element::bfloat16: return rocblas_datatype_bf16_r;
    case Element::float16: return rocblas_datatype_f16_r;
  }
  return rocblas_datatype_f32_r;
}

}  // namespace

void vendor_gemm(void* stream, Gemm16 const& g) {
  auto const narrow = g.type == Type16::bfloat16 ? rocblas_datatype_bf16_r : rocblas_datatype_f16_r;
  auto const type_c = g.wide_c ? rocblas_datatype_f32_r : narrow;
  // rocBLAS sees columns where p3d has rows, so it computes C^T = op(B)^T op(A)^T.
  check(rocblas_gemm_ex(on_stream(stream), mode(g.op_b), mode(g.op_a), to_int(g.n), to_int(g.m), to_int(g.k), &g.alpha,
                        g.b, narrow, to_int(g.ldb), g.a, narrow, to_int(g.lda), &g.beta, g.c, type_c, to_int(g.ldc),
                        g.c, type_c, to_int(g.ldc), rocblas_datatype_f32_r, rocblas_gemm_algo_standard, 0,
                        rocblas_gemm_flags_none),
        "rocblas_gemm_ex");
}

void vendor_batched_gemm(void* stream, BatchedGemm const& g) {
  bool const wide = g.type == Element::float64;
  auto const single_alpha = static_cast<float>(g.alpha), single_beta = static_cast<float>(g.beta);
  void const* const alpha = wide ? static_cast<void const*>(&g.alpha) : &single_alpha;
  void const* const beta = wide ? static_cast<void const*>(&g.beta) : &single_beta;
  auto const type = type_of(g.type), type_c = type_of(g.type_c);
  check(rocblas_gemm_strided_batched_ex(on_stream(stream), mode(g.op_b), mode(g.op_a), to_int(g.n), to_int(g.m),
                                        to_int(g.k), alpha, g.b, type, to_int(g.ldb), g.stride_b, g.a, type,
                                        to_int(g.lda), g.stride_a, beta, g.c, type_c, to_int(g.ldc), g.stride_c, g.c,
                                        type_c, to_int(g.ldc), g.stride_c, to_int(g.batch),
                                        wide ? rocblas_datatype_f64_r : rocblas_datatype_f32_r,
                                        rocblas_gemm_algo_standard, 0, rocblas_gemm_flags_none),
        "rocblas_gemm_strided_batched_ex");
}

char const* vendor_method() { return "rocblas_gemm_ex, sums in float"; }

void release_vendor() {
  if (handle != nullptr) static_cast<void>(rocblas_destroy_handle(handle));
  handle = nullptr;
}

}  // namespace p3d::linalg::detail
