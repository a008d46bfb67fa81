#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The vendors' GEMMs, which need neither Kokkos nor a GPU to be compiled.
#
# usage: vendor_gemm.sh cublas <nvcc> [compiler options]     compiled by nvcc; the object must want its calls
#        vendor_gemm.sh rocblas <c++> [compiler options]     read by a compiler, with the headers of ROCm if it finds
#                                                            them, else with a likeness of what the file uses of them
#        vendor_gemm.sh onemkl <c++> [compiler options]      the same for Intel's (Python's packages intel-sycl-rt,
#                                                            onemkl-sycl-include and mkl-include have the headers)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kind=$1 compiler=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(-std=c++20 -I"$root/include" -I"$root/src" "$@")
case $kind in
  cublas)
    # FMT_USE_CONSTEXPR: see cmake/P3dRooms.cmake
    "$compiler" -x cu -DFMT_USE_CONSTEXPR=1 "${options[@]}" -c "$root/src/linalg/gemm_cublas.cpp" -o "$work/gemm.o"
    wanted=(cublasGemmEx cublasGemmStridedBatchedEx cublasSetStream cublasSetMathMode) ;;
  rocblas)
    options+=(-D__HIP_PLATFORM_AMD__)
    if ! echo '#include <rocblas/rocblas.h>' | "$compiler" -x c++ "${options[@]}" -fsyntax-only - 2> /dev/null; then
      echo "no rocBLAS here: a likeness of its header"
      mkdir "$work/rocblas"
      cat > "$work/rocblas/rocblas.h" <<'HEADER'
#pragma once
#include <cstdint>
typedef struct ihipStream_t* hipStream_t;
typedef struct _rocblas_handle* rocblas_handle;
typedef enum { rocblas_status_success = 0 } rocblas_status;
typedef enum { rocblas_operation_none = 111, rocblas_operation_transpose = 112 } rocblas_operation;
typedef enum {
  rocblas_datatype_f16_r = 150,
  rocblas_datatype_f32_r = 151,
  rocblas_datatype_f64_r = 152,
  rocblas_datatype_bf16_r = 168
} rocblas_datatype;
typedef enum { rocblas_gemm_algo_standard = 0 } rocblas_gemm_algo;
typedef enum { rocblas_gemm_flags_none = 0 } rocblas_gemm_flags;
typedef enum { rocblas_atomics_not_allowed = 0 } rocblas_atomics_mode;
typedef std::int32_t rocblas_int;
typedef std::int64_t rocblas_stride;
extern "C" {
rocblas_status rocblas_create_handle(rocblas_handle*);
rocblas_status rocblas_destroy_handle(rocblas_handle);
rocblas_status rocblas_set_stream(rocblas_handle, hipStream_t);
rocblas_status rocblas_set_atomics_mode(rocblas_handle, rocblas_atomics_mode);
rocblas_status rocblas_gemm_ex(rocblas_handle, rocblas_operation, rocblas_operation, rocblas_int m, rocblas_int n,
                               rocblas_int k, void const* alpha, void const* a, rocblas_datatype, rocblas_int lda,
                               void const* b, rocblas_datatype, rocblas_int ldb, void const* beta, void const* c,
                               rocblas_datatype, rocblas_int ldc, void* d, rocblas_datatype, rocblas_int ldd,
                               rocblas_datatype compute, rocblas_gemm_algo, std::int32_t solution,
                               std::uint32_t flags);
rocblas_status rocblas_gemm_strided_batched_ex(
    rocblas_handle, rocblas_operation, rocblas_operation, rocblas_int m, rocblas_int n, rocblas_int k,
    void const* alpha, void const* a, rocblas_datatype, rocblas_int lda, rocblas_stride, void const* b,
    rocblas_datatype, rocblas_int ldb, rocblas_stride, void const* beta, void const* c, rocblas_datatype,
    rocblas_int ldc, rocblas_stride, void* d, rocblas_datatype, rocblas_int ldd, rocblas_stride, rocblas_int count,
    rocblas_datatype compute, rocblas_gemm_algo, std::int32_t solution, std::uint32_t flags);
}
HEADER
      options+=(-I"$work")
    fi
    "$compiler" -Wall -Wextra -Werror "${options[@]}" -c "$root/src/linalg/gemm_rocblas.cpp" \
      -o "$work/gemm.o"
    wanted=(rocblas_gemm_ex rocblas_gemm_strided_batched_ex rocblas_set_stream rocblas_set_atomics_mode) ;;
  onemkl)
    if ! echo '#include <oneapi/mkl/blas.hpp>' | "$compiler" -x c++ "${options[@]}" -fsyntax-only - 2> /dev/null; then
      echo "no oneMKL here: a likeness of its header"
      mkdir -p "$work/oneapi/mkl" "$work/sycl"
      cat > "$work/sycl/sycl.hpp" <<'HEADER'
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>
namespace sycl {
struct queue {};
struct event {};
struct half {
  half(float);
  std::uint16_t bits;
};
struct exception : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace sycl
HEADER
      cat > "$work/oneapi/mkl/blas.hpp" <<'HEADER'
#pragma once
#include <sycl/sycl.hpp>
namespace oneapi::mkl {
enum class transpose : char { nontrans = 0, trans = 1, conjtrans = 3 };
struct bfloat16 {
  std::uint16_t bits;
};
namespace blas {
enum class compute_mode : std::uint64_t { unset = 0, standard = 0x1000 };
namespace row_major {
#define GEMM_BATCH(A, C, S)                                                                                         \
  sycl::event gemm_batch(sycl::queue&, transpose, transpose, std::int64_t m, std::int64_t n, std::int64_t k, S alpha, \
                         A const* a, std::int64_t lda, std::int64_t stride_a, A const* b, std::int64_t ldb,            \
                         std::int64_t stride_b, S beta, C* c, std::int64_t ldc, std::int64_t stride_c,                 \
                         std::int64_t batch_size, compute_mode, std::vector<sycl::event> const& dependencies = {});
GEMM_BATCH(double, double, double)
GEMM_BATCH(float, float, float)
GEMM_BATCH(bfloat16, bfloat16, float)
GEMM_BATCH(bfloat16, float, float)
GEMM_BATCH(sycl::half, sycl::half, sycl::half)
GEMM_BATCH(sycl::half, float, float)
}  // namespace row_major
}  // namespace blas
}  // namespace oneapi::mkl
HEADER
      options+=(-I"$work")
    fi
    "$compiler" -Wall -Wextra -Werror "${options[@]}" -c "$root/src/linalg/gemm_onemkl.cpp" -o "$work/gemm.o"
    wants=$(nm -u -C "$work/gemm.o" | grep gemm_batch)
    for type in double float half bfloat16; do
      grep -q "$type const\*" <<< "$wants" || { echo "the object does not want gemm_batch for $type" >&2; exit 1; }
    done
    wanted=() ;;
  *) echo "unknown vendor: $kind" >&2; exit 2 ;;
esac
for name in ${wanted[@]+"${wanted[@]}"}; do
  nm -u "$work/gemm.o" | grep -E " ${name}(_v2|_64)?$" || { echo "the object does not want $name" >&2; exit 1; }
done
