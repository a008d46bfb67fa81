// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensor-parallel linear layers (Shoeybi et al., arXiv 1909.08053, section 3): the one place where their GEMMs meet
// their reductions. Weights are [out, in], activations [tokens, features]; gradients of weights and biases are added to
// what is there.
//
//   column-parallel: the rank holds rows [out / tp] of W; forward needs no message, the input gradient is all-reduced
//   over tp.
//   row-parallel: the rank holds columns [in / tp] of W; the forward result is all-reduced over tp, backward needs no
//   message.
//
// Under sequence parallelism (rows.hpp) only the rank's own rows of a sum hold results.
//
// Long messages go in chunks of rows (TpOverlap, comm.overlap_tp), each beside the GEMM of another: the sum behind a
// GEMM, and under sequence parallelism the gather in front of one. The GEMM is then several calls, for other rows each.
//
// S is the storage type of weights and activations. Sums inside a GEMM are of accumulate_t<S>, those over tp are
// rounded to S. Gradients of weights and biases are of type G.
//
// Each call costs one GEMM of 2 tokens out in / tp FLOPs, and where there is a sum, one all-reduce of tokens x features
// (a reduce-scatter under sequence parallelism).

#include <p3d/device/precision.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/parallel/rows.hpp>

namespace p3d::parallel {

/// y [tokens, out/tp] = x [tokens, in] W^T + bias; bias may be empty.
template <class S>
void column_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View1<S const> bias, View2<S> y);
/// The forward pass of rows on their way: it multiplies them as they arrive. All have arrived when it returns.
template <class S>
void column_linear_forward(TensorParallel& tp, WholeRows<S>& x, View2<S const> w, View1<S const> bias, View2<S> y);

/// dx [tokens, in] = dy [tokens, out/tp] W. Starts the sum of dx over tp: wait for it before reading dx. A GEMM of
/// weight gradients behind it hides an all-reduce, which goes whole. A reduce-scatter goes in chunks beside both GEMMs.
template <class S>
RowMessages column_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx);

/// y [tokens, out] = sum over tp of x [tokens, in/tp] W^T. The caller adds the bias, which belongs after the sum. The
/// sum of a chunk overlaps the GEMM of the next.
template <class S>
void row_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y);

/// dx [tokens, in/tp] = dy [tokens, out] W, or is added to what dx holds, without a message.
template <class S>
void row_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, View2<S> dx,
                               kernels::Store store = kernels::Store::overwrite);
/// The input gradient from rows on their way: it multiplies them as they arrive. All have arrived when it returns.
template <class S>
void row_linear_backward_input(TensorParallel& tp, WholeRows<S>& dy, View2<S const> w, View2<S> dx,
                               kernels::Store store = kernels::Store::overwrite);

/// y [tokens, out] = x [tokens, in] W^T on this rank alone: of a matrix that is whole on every rank, or of some of its
/// rows. Without a message.
template <class S>
void local_linear_forward(TensorParallel& tp, View2<S const> x, View2<S const> w, View2<S> y);
/// The forward pass on this rank alone of rows on their way, as column_linear_forward().
template <class S>
void local_linear_forward(TensorParallel& tp, WholeRows<S>& x, View2<S const> w, View2<S> y);

/// dx [tokens, in] = dy [tokens, out] W of such a matrix, or is added to what dx holds, without a message. T is S, or
/// accumulate_t<S> for a gradient that others will be added to.
template <class S, class T = S>
void local_linear_backward_input(TensorParallel& tp, View2<S const> dy, View2<S const> w, kernels::Given<View2<T>> dx,
                                 kernels::Store store = kernels::Store::overwrite);

/// dw += dy^T x, for all kinds of layers, without a message. A bias's gradient is the sum of dy's rows
/// (kernels::bias_backward).
template <class S, class G = device::accumulate_t<S>>
void linear_backward_weight(ExecSpace const& exec, View2<S const> dy, View2<S const> x, kernels::Given<View2<G>> dw);

}  // namespace p3d::parallel
