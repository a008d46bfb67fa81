// SPDX-License-Identifier: Apache-2.0
#pragma once
// The processor that a test runs on, for tests of what only some have.

namespace p3d::test {

/// True where the BLAS may take its kernels for AVX-512. OpenBLAS 0.3.21 has others there for small products, so that a
/// row's bits may depend on the number of rows (linalg::gemm_row_block); nobody has looked.
inline bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

}  // namespace p3d::test
