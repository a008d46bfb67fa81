// SPDX-License-Identifier: Apache-2.0
// One GEMM on the host, in the caller's thread: by the BLAS through its Fortran interface, or by oneDNN.
#include <p3d/linalg/host_blas.hpp>

#include <p3d/base/error.hpp>

#include <climits>
#include <type_traits>

#include "onednn.hpp"
#include "rounded_gemm.hpp"

// The Fortran interface of every BLAS with 32-bit integers.
extern "C" {
void sgemm_(char const*, char const*, int const*, int const*, int const*, float const*, float const*, int const*,
            float const*, int const*, float const*, float*, int const*);
void dgemm_(char const*, char const*, int const*, int const*, int const*, double const*, double const*, int const*,
            double const*, int const*, double const*, double*, int const*);
void sgemv_(char const*, int const*, int const*, float const*, float const*, int const*, float const*, int const*,
            float const*, float*, int const*);
void dgemv_(char const*, int const*, int const*, double const*, double const*, int const*, double const*, int const*,
            double const*, double*, int const*);
}

namespace p3d::linalg {

namespace {
void blas_gemm(char const* ta, char const* tb, int const* m, int const* n, int const* k, float const* alpha,
               float const* a, int const* lda, float const* b, int const* ldb, float const* beta, float* c,
               int const* ldc) {
  sgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void blas_gemm(char const* ta, char const* tb, int const* m, int const* n, int const* k, double const* alpha,
               double const* a, int const* lda, double const* b, int const* ldb, double const* beta, double* c,
               int const* ldc) {
  dgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void blas_gemv(char const* t, int const* m, int const* n, float const* alpha, float const* a, int const* lda,
               float const* x, int const* incx, float const* beta, float* y) {
  int const one = 1;
  sgemv_(t, m, n, alpha, a, lda, x, incx, beta, y, &one);
}
void blas_gemv(char const* t, int const* m, int const* n, double const* alpha, double const* a, int const* lda,
               double const* x, int const* incx, double const* beta, double* y) {
  int const one = 1;
  dgemv_(t, m, n, alpha, a, lda, x, incx, beta, y, &one);
}
}  // namespace

template <class T>
void detail::plain_host_gemm(HostLibrary library, Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k,
                             T alpha, T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c,
                             std::int64_t ldc) {
  if constexpr (std::is_same_v<T, float>) {
    if (library == HostLibrary::onednn && m > 1)
      return detail::onednn_sgemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  for (std::int64_t size : {m, n, k, lda, ldb, ldc}) {
    P3D_REQUIRE(size <= INT_MAX,
                "the BLAS counts in 32 bits: a matrix has more than 2^31 rows, columns or elements in a row");
  }
  // The BLAS sees columns where p3d has rows, so it computes C^T = op(B)^T op(A)^T. It insists on leading dimensions of
  // at least one.
  auto const leading = [](std::int64_t ld) { return static_cast<int>(ld < 1 ? 1 : ld); };
  char const ta = static_cast<char>(op_a), tb = static_cast<char>(op_b);
  int const rows = static_cast<int>(m), cols = static_cast<int>(n), inner = static_cast<int>(k);
  int const la = leading(lda), lb = leading(ldb), lc = leading(ldc);
  if (m == 1) {  // a GEMM would first copy all of B
    int const step = op_a == Op::none ? 1 : la;
    int const b_rows = op_b == Op::none ? cols : inner, b_cols = op_b == Op::none ? inner : cols;
    char const t = op_b == Op::none ? 'N' : 'T';
    return blas_gemv(&t, &b_rows, &b_cols, &alpha, b, &lb, a, &step, &beta, c);
  }
  blas_gemm(&tb, &ta, &cols, &rows, &inner, &alpha, b, &lb, a, &la, &beta, c, &lc);
}

template <class T>
void host_gemm(HostLibrary library, Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
               T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  if constexpr (std::is_same_v<T, float>) {
    if (auto const to = detail::operands(); to != Operands::fp32 && m > 0 && n > 0 && k > 0)
      return detail::rounded_gemm(to, {op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
  }
  detail::plain_host_gemm<T>(library, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void host_gemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a, std::int64_t lda,
               T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  host_gemm<T>(gemm_choice().others(), op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#define P3D_INSTANTIATE(T)                                                                                             \
  template void detail::plain_host_gemm<T>(HostLibrary, Op, Op, std::int64_t, std::int64_t, std::int64_t, T, T const*, \
                                           std::int64_t, T const*, std::int64_t, T, T*, std::int64_t);                 \
  template void host_gemm<T>(HostLibrary, Op, Op, std::int64_t, std::int64_t, std::int64_t, T, T const*, std::int64_t, \
                             T const*, std::int64_t, T, T*, std::int64_t);                                             \
  template void host_gemm<T>(Op, Op, std::int64_t, std::int64_t, std::int64_t, T, T const*, std::int64_t, T const*,    \
                             std::int64_t, T, T*, std::int64_t);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::linalg
