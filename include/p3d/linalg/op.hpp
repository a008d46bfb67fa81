// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operation on an operand of a GEMM before the multiplication. No Kokkos.

namespace p3d::linalg {

/// The values are the characters of the BLAS interface.
enum class Op : char { none = 'N', transpose = 'T' };

}  // namespace p3d::linalg
