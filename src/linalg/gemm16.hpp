// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ways to multiply 16-bit matrices share. No Kokkos, so that the vendors' files compile by themselves.

#include <p3d/linalg/op.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::linalg::detail {

enum class Type16 { bfloat16, float16 };

/// C = alpha op(A) op(B) + beta C on plain memory, row-major; m, n and k are positive. C is float or of A's type.
struct Gemm16 {
  Type16 type;
  bool wide_c;  ///< C is float
  Op op_a, op_b;
  std::int64_t m, n, k;
  float alpha;
  std::uint16_t const* a;
  std::int64_t lda;  ///< elements from one row to the next, one at least
  std::uint16_t const* b;
  std::int64_t ldb;
  float beta;
  void* c;
  std::int64_t ldc;

  std::int64_t bytes_of_c() const { return wide_c ? 4 : 2; }
};

/// On the host: the quickest, or one of them for tests.
enum class HostMethod { automatic, onednn, widened };
void set_host_method(HostMethod method);

/// What one thread works in. The panels' sizes are those of benchmarks/gemm16.
inline constexpr std::int64_t panel_rows = 1024, panel_cols = 768, panel_depth = 384;
inline constexpr std::int64_t workspace_floats =
    panel_rows * panel_depth + panel_depth * panel_cols + panel_rows * panel_cols;

/// Panels of A and B widened to float for the BLAS. May be called by several threads, each with a workspace of its own.
void widened_gemm(Gemm16 const& product, float* workspace);

// oneDNN. A build without it has these functions too (no_onednn.cpp).

/// "" where the library is missing or the processor has no units for `type`; otherwise its version and units.
std::string onednn_method(Type16 type);
/// Gets ready for products of this shape by so many threads, if that has not been done. False where it cannot be done:
/// other alpha and beta than training has, or no implementation that works in the workspace. Called by one thread.
bool prepare_onednn(Gemm16 const& product, int threads);
/// A product of a shape that is prepared, by thread number `thread`.
void onednn_gemm(Gemm16 const& product, int thread, float* workspace);

// GPUs: one file a vendor, compiled where Kokkos is for its GPUs. `stream`: the vendor's, of device::native_stream.

void vendor_gemm(void* stream, Gemm16 const& product);
char const* vendor_method();
/// Gives back what the vendor's library holds; before Kokkos ends.
void release_vendor();

}  // namespace p3d::linalg::detail
