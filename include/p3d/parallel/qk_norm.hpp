// SPDX-License-Identifier: Apache-2.0
#pragma once
// The norm of queries and keys (kernels/qk_norm.hpp) where tensor parallelism divides the heads. A norm of each head
// needs no message. A norm of all heads of a token needs a sum over tp of 2 numbers a token in forward, and again in
// backward. Gradients of weights are the rank's own: the parameter table says over which axes they are summed.

#include <p3d/kernels/qk_norm.hpp>
#include <p3d/parallel/linear.hpp>

namespace p3d::parallel {

/// kernels::qk_norm_forward over the ranks of tp. `sums` [rows, 2] is scratch; it may be empty where shape.ranks is 1
/// or each head has a norm.
template <class S>
void qk_norm_forward(TensorParallel& tp, kernels::QkNormShape const& shape,
                     kernels::QkNormVectors<S const> const& weights, View2<kernels::Acc<S>> sums, View2<S> qkv,
                     View2<S> before, View2<kernels::Acc<S>> scale);

/// kernels::qk_norm_backward over the ranks of tp, with the same scratch.
template <class S, class G = kernels::Acc<S>>
void qk_norm_backward(TensorParallel& tp, kernels::QkNormShape const& shape,
                      kernels::QkNormVectors<S const> const& weights, View2<kernels::Acc<S>> sums, View2<S> dqkv,
                      View2<S const> before, View2<kernels::Acc<S> const> scale,
                      kernels::QkNormVectors<G> const& gradients, kernels::ColumnSums<S, G>& sums_over_rows);

}  // namespace p3d::parallel
