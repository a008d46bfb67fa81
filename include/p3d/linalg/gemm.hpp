// SPDX-License-Identifier: Apache-2.0
#pragma once
// GEMMs: by the BLAS or oneDNN on the host (gemm_choice.hpp), by the vendor's library on GPUs, and by Kokkos-Kernels on
// GPUs for which p3d has no vendor's library.

#include <p3d/device/float16.hpp>
#include <p3d/device/view.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/op.hpp>
#include <p3d/linalg/operands.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::linalg {

using device::ExecSpace;
using device::View2;

/// C = alpha op(A) op(B) + beta C, row-major, with the row strides of the views (column ranges of wider matrices are
/// fine, without copies). Shapes: op(A) [m, k], op(B) [k, n], C [m, n]. On devices it is asynchronous with respect to
/// `exec`. beta = 0 overwrites C (NaN in C does not matter). With k = 0, C is scaled by beta. On the host each of
/// Kokkos' threads computes a slice of C, with the library in one thread. In float the
/// operands may be rounded first (operands.hpp). Explicitly instantiated for float and double.
template <std::floating_point T>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c);

/// The rows of C at whose multiples a GEMM with op(A) = A may be cut into several, the last of which takes the rest
/// too. A BLAS computes tiles of some rows (OpenBLAS: 12 on processors with AVX2), and adds in another order in what is
/// left beside whole tiles; blocks of whole tiles keep the bits of one call. A test holds the BLAS to this, in one
/// thread. oneDNN and GPUs' libraries choose among algorithms by the number of rows, too, so that last bits may change.
inline constexpr std::int64_t gemm_row_block = 48;

/// The 16-bit types of matrices that a GEMM reads.
template <class S>
concept Float16 = std::same_as<S, device::bfloat16> || std::same_as<S, device::float16>;

/// The GEMM of 16-bit matrices. Each product and sum is computed in float. C is rounded once if it is of type S, and
/// not at all if it is float (gradients that are summed over microbatches). beta C is read as C's type. Tests hold the
/// error to this bound, where u = 2^-24 and r is the unit roundoff of C's type:
///   |error| <= (k + 2) u (|alpha| sum |a| |b| + |beta c|) + r |C|
/// On the host it is computed by oneDNN where p3d was built with it and the processor has units for S; otherwise panels
/// of A and B are widened to float and multiplied by the BLAS. On GPUs the vendor's library computes it, or a plain
/// kernel where p3d knows none. Instantiated for S = bfloat16 and float16, C = S and float.
template <Float16 S, class C>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, float alpha, View2<S const> a, View2<S const> b, float beta,
          View2<C> c);

/// The way in which GEMMs of matrices of type S are computed here, in words, for reports.
template <Float16 S>
std::string gemm_method();

}  // namespace p3d::linalg
