// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is done with an operand of a GEMM before it is multiplied. No Kokkos.

namespace p3d::linalg {

enum class Op : char { none = 'N', transpose = 'T' };

}  // namespace p3d::linalg
