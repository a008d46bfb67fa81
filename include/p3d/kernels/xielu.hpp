// SPDX-License-Identifier: Apache-2.0
#pragma once
// The activation function xIELU (Huang, Schlag, arXiv 2411.13010; Apertus), whose two slopes are learned, one pair for
// all columns of a matrix:
//
//   y = a_p x^2 + beta x                          where x > 0
//   y = a_n (exp(min(x, eps)) - 1 - x) + beta x   elsewhere
//
// with beta = 1/2 and eps = -1e-6. Of the learned numbers p and n come a_p = softplus(p) and a_n = beta + softplus(n),
// with softplus(v) = ln(1 + exp(v)). Between eps and 0 the exponential is a constant. S, Acc and G are explained in
// common.hpp.

#include <p3d/base/xielu.hpp>
#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The function of x + bias, for slopes [2] = (p, n). The bias [columns of x] may be empty; y may be x.
template <class S>
void xielu_forward(ExecSpace const& exec, View2<S const> x, View1<S const> slopes, View2<S> y,
                   Given<View1<S const>> bias = {});
/// dx = the gradient of x + bias, for that of y; dx may be dy. Those of p and n are sums over all elements: they are
/// added to d_slopes [2] when `sums` are finished, in an order that depends on the number of rows alone.
template <class S, class G = Acc<S>>
void xielu_backward(ExecSpace const& exec, View2<S const> x, View1<S const> slopes, View2<S const> dy, View2<S> dx,
                    Given<View1<S const>> bias, Given<View1<G>> d_slopes, ColumnSums<S, G>& sums);

}  // namespace p3d::kernels
