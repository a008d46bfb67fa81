// SPDX-License-Identifier: Apache-2.0
#pragma once
// GEMMs of mixture-of-experts layers: each group of rows (the tokens of one expert) has a weight of its own. Group g
// has rows [offsets[g], offsets[g + 1]) of the row matrices, and block g of a stacked matrix, whose blocks lie one
// below the other: [groups * block rows, cols]. offsets [groups + 1] are on the host and must not fall; groups may be
// empty. The groups are computed one GEMM after the other (gemm.hpp says its precision, strides, threads and
// asynchrony), so a row's result does not depend on the other groups.

#include <p3d/linalg/gemm.hpp>

#include <cstdint>
#include <span>

namespace p3d::linalg {

/// For every group g: C's rows of g = alpha (A's rows of g) op(B_g) + beta (C's rows of g). a is [rows, k], b stacked
/// with op(B_g) [k, n], c [rows, n]. Rows outside the groups keep their values. It takes 2 rows k n FLOPs.
template <std::floating_point T>
void grouped_gemm(ExecSpace const& exec, Op op_b, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c,
                  std::span<std::int64_t const> offsets);
/// grouped_gemm of 16-bit matrices.
template <Float16 S, class C>
void grouped_gemm(ExecSpace const& exec, Op op_b, float alpha, View2<S const> a, View2<S const> b, float beta,
                  View2<C> c, std::span<std::int64_t const> offsets);

/// The gradients of the weights: C_g = alpha (A's rows of g)^T (B's rows of g) + beta C_g. a is [rows, m], b [rows, n],
/// c stacked with C_g [m, n]. An empty group's block is scaled by beta (cleared with 0).
template <std::floating_point T>
void grouped_gemm_weight(ExecSpace const& exec, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c,
                         std::span<std::int64_t const> offsets);
/// grouped_gemm_weight of 16-bit matrices.
template <Float16 S, class C>
void grouped_gemm_weight(ExecSpace const& exec, float alpha, View2<S const> a, View2<S const> b, float beta, View2<C> c,
                         std::span<std::int64_t const> offsets);

}  // namespace p3d::linalg
