// SPDX-License-Identifier: Apache-2.0
// GEMMs on Intel's GPUs. There is no Kokkos here: tests/platforms/vendor_gemm.sh reads it with oneMKL's headers alone.

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <oneapi/mkl/blas.hpp>
#include <sycl/sycl.hpp>

#include "gemm16.hpp"
#include "vendor_gemm.hpp"

namespace p3d::linalg::detail {

namespace {

namespace mkl = oneapi::mkl;

mkl::transpose mode(Op op) { return op == Op::none ? mkl::transpose::nontrans : mkl::transpose::trans; }

/// Calls oneMKL. S is the type of alpha and beta; it is half where A, B and C are, since oneMKL has no other form of
/// those.
template <class AB, class C, class S>
void call(sycl::queue& queue, BatchedGemm const& g) {
  // The queue is in order, so the event that the call returns need not be kept.
  mkl::blas::row_major::gemm_batch(queue, mode(g.op_a), mode(g.op_b), g.m, g.n, g.k, static_cast<S>(g.alpha),
                                   static_cast<AB const*>(g.a), g.lda, g.stride_a, static_cast<AB const*>(g.b), g.ldb,
                                   g.stride_b, static_cast<S>(g.beta), static_cast<C*>(g.c), g.ldc, g.stride_c, g.batch,
                                   mkl::blas::compute_mode::standard);
}

}  // namespace

void vendor_batched_gemm(void* stream, BatchedGemm const& g) {
  using mkl::bfloat16;
  using sycl::half;
  auto& queue = *static_cast<sycl::queue*>(stream);
  bool const wide_c = g.type_c == Element::float32;
  try {
    switch (g.type) {
      case Element::float64: return call<double, double, double>(queue, g);
      case Element::float32: return call<float, float, float>(queue, g);
      case Element::bfloat16:
        return wide_c ? call<bfloat16, float, float>(queue, g) : call<bfloat16, bfloat16, float>(queue, g);
      case Element::float16: return wide_c ? call<half, float, float>(queue, g) : call<half, half, half>(queue, g);
    }
  } catch (sycl::exception const& e) {
    throw base::Error(
        {.expected = "oneMKL's gemm_batch to succeed",
         .found = e.what(),
         .where = "a GEMM",
         .fix = "look for an earlier error of this GPU; where its memory is full, make batch.micro smaller"});
  }
}

void vendor_gemm(void* stream, Gemm16 const& g) { vendor_batched_gemm(stream, batch_of_one(g)); }

char const* vendor_method() { return "oneMKL's gemm_batch, sums in float"; }

void release_vendor() {}

}  // namespace p3d::linalg::detail
