#pragma once
// The BLAS on plain host memory, for kernels that run on the host and make their own threads.

#include <p3d/linalg/gemm.hpp>

#include <cstdint>
#include <string>

namespace p3d::linalg {

/// C = alpha op(A) op(B) + beta C, row-major; ld*: elements from one row to the next. Shapes as in gemm. Calls the BLAS and
/// nothing else, so it may be called from inside a host-parallel region (under SingleThreadedBlas). float and double.
template <class T>
void host_gemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a, std::int64_t lda,
               T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

/// What the BLAS that is loaded says of itself, on one line; "" when it cannot be asked (OpenBLAS, MKL and BLIS can).
std::string blas_version();

/// While it lives the BLAS uses one thread, whichever thread calls it; then as many as before. For one thread to make, outside
/// parallel regions. Costs nothing when the BLAS has one thread anyway, or cannot be told.
class SingleThreadedBlas {
public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(SingleThreadedBlas const&) = delete;
  SingleThreadedBlas& operator=(SingleThreadedBlas const&) = delete;

private:
  int before_;
};

}  // namespace p3d::linalg
