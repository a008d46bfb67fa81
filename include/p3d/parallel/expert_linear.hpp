// SPDX-License-Identifier: Apache-2.0
#pragma once
// The linear maps of a mixture-of-experts layer on one rank, without messages. S is the storage type of weights and
// activations; sums inside a GEMM are of accumulate_t<S>. Offsets [experts + 1] give the rows of each local expert; an
// expert's weights are a block of the stacked matrix (linalg/grouped_gemm.hpp).

#include <p3d/kernels/common.hpp>
#include <p3d/parallel/linear.hpp>

#include <cstdint>
#include <span>

namespace p3d::parallel {

/// y [tokens, out] = x [tokens, in] W^T, with y in S or in accumulate_t<S>.
template <class S, class C>
void linear_forward(ExecSpace const& exec, View2<S const> x, View2<S const> w, View2<C> y);
/// dx [tokens, in] (+)= dy [tokens, out] W.
template <class S>
void linear_backward_input(ExecSpace const& exec, View2<S const> dy, View2<S const> w, kernels::Store store,
                           View2<S> dx);

/// The form in which a block of the stacked matrix is multiplied: W_e or W_e^T.
enum class Block { as_it_is, transposed };
/// For every expert e: y's rows of e (+)= x's rows of e times W_e, or times W_e^T.
template <class S>
void expert_linear(ExecSpace const& exec, View2<S const> x, View2<S const> w, Block block,
                   std::span<std::int64_t const> offsets, kernels::Store store, View2<S> y);
/// For every expert e: dW_e += (a's rows of e)^T (b's rows of e).
template <class S, class G>
void expert_linear_weight(ExecSpace const& exec, View2<S const> a, View2<S const> b,
                          std::span<std::int64_t const> offsets, View2<G> dw);

}  // namespace p3d::parallel
