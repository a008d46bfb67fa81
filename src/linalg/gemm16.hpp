// SPDX-License-Identifier: Apache-2.0
#pragma once
// The types and functions that the methods for 16-bit GEMMs share. No Kokkos, so that the vendors' files compile by
// themselves.

#include <p3d/base/memory_sizes.hpp>
#include <p3d/linalg/op.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::linalg::detail {

/// The 16-bit types of A and B.
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

/// The method on the host: the quickest one, or for tests a fixed one.
enum class HostMethod { automatic, onednn, widened };
void set_host_method(HostMethod method);

// Sizes of the memory in which one thread widens panels.
using base::panel_rows;
using base::panel_cols;
using base::panel_depth;
using base::panel_floats;

/// Widens panels of A and B to float for the BLAS. Several threads may call it, each with a workspace of its own.
void widened_gemm(Gemm16 const& product, float* workspace);

// oneDNN's functions. A build without oneDNN has them too (no_onednn.cpp).

/// The version and units of oneDNN for `type`; "" where the library is missing or the processor has no such units.
std::string onednn_method(Type16 type);
/// Prepares GEMMs of this shape for so many threads, unless that was done before. Returns false where oneDNN cannot do
/// them: other alpha and beta than training has, or no implementation that works in the workspace. Called by one
/// thread.
bool prepare_onednn(Gemm16 const& product, int threads);
/// Computes a GEMM of a prepared shape, on thread number `thread`.
void onednn_gemm(Gemm16 const& product, int thread, float* workspace);

// GPUs' functions: one file for each vendor, compiled where Kokkos is for its GPUs. `stream` is the vendor's, from
// device::native_stream.

/// Computes a GEMM on the stream.
void vendor_gemm(void* stream, Gemm16 const& product);
/// The vendor's method, in words, for reports.
char const* vendor_method();
/// Frees the state of the vendor's library. Called before Kokkos ends.
void release_vendor();

}  // namespace p3d::linalg::detail
