// SPDX-License-Identifier: Apache-2.0
#pragma once
// A GEMM for few rows. A BLAS first puts the whole of B into an order of its own, at about one element a cycle: for the
// 128 rows of one expert that is a quarter of the time. Here panels of 48 columns of B are put in order with vector
// instructions. (Fetching the next panel meanwhile made it slower: 0.85 instead of 0.89 of a large GEMM.) Loops and
// register tiles are those of Goto, van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34
// (2008), with A read where it lies.

#include <p3d/device/view.hpp>
#include <p3d/linalg/op.hpp>

#include <cstdint>

namespace p3d::linalg::detail {

/// C = alpha A op(B) + beta C, row-major. A is [m, k], op(B) [k, n], C [m, n], k > 0. A row's sums do not depend on the
/// number of rows. Returns false, with nothing done, where p3d was not built for a host with AVX-512.
bool panel_gemm(device::ExecSpace const& exec, Op op_b, float alpha, device::View2<float const> a,
                device::View2<float const> b, float beta, device::View2<float> c);

}  // namespace p3d::linalg::detail
