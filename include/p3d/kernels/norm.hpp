// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer normalisation (Ba, Kiros, Hinton, arXiv 1607.06450) and RMS normalisation (Zhang, Sennrich, arXiv 1910.07467).
// Rank-local; forward beside backward. x, y, dy, dx: [rows, hidden]; weight, bias and gradients: [hidden]; mean, rstd:
// [rows]. S, Acc, G: see common.hpp; sums over rows are kept in double.
//
// A norm stands between two residual branches: its input is the residual sum that one branch ends in, its output begins
// the next. Both passes have forms that are fused with these ends: fewer launches, and rows are read once.

#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The residual sum that a norm reads, as residual_forward (elementwise.hpp) makes it: x + dropout(branch + bias).
/// Without a branch there is nothing to be made.
template <class S>
struct ResidualSum {
  TokenRows rows{};
  View2<S const> x{}, branch{};
  View1<S const> bias{};
  Dropout dropout{};
};

/// What the backward of a norm does on its way, for the branches on both sides of it.
template <class S, class G = Acc<S>>
struct NormBranches {
  View2<S const> after{};  ///< the gradient of the branch that begins with the norm, behind its dropout; may be dx
  View1<G> after_bias{};   ///< += column sums of `after`; empty: nothing
  TokenRows rows{};
  Dropout dropout{};  ///< of the branch that ends before the norm
  View2<S> before{};  ///< = dropout mask * scale * dx: that branch's gradient; may be dy, `after` or x. Empty: nothing.
};

/// y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps) (biased variance). `bias` may be empty. Saves mean,
/// rstd. With a `sum` x is its result.
template <class S>
void layernorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, View1<S const> bias, double eps,
                       View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd);
template <class S>
void layernorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, View1<S const> weight,
                       View1<S const> bias, double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd);
/// dx (+)= input gradient; dweight += , dbias += (dbias may be empty).
template <class S, class G = Acc<S>>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias);
/// The same, fused with what `branches` says and with what waits in `sums`. On the host two launches, after which
/// nothing waits; on devices one, after which the gradients of the vectors wait in `sums`: finish() them before others
/// use its workspace.
template <class S, class G = Acc<S>>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias, NormBranches<S, G> const& branches,
                        ColumnSums<S, G>& sums);

/// y = x rrms weight, rrms = 1 / sqrt(mean(x^2) + eps). Saves rrms.
template <class S>
void rmsnorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, double eps, View2<S> y,
                     View1<Acc<S>> rrms);
template <class S>
void rmsnorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, View1<S const> weight, double eps,
                     View2<S> y, View1<Acc<S>> rrms);
template <class S, class G = Acc<S>>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight);
template <class S, class G = Acc<S>>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight,
                      NormBranches<S, G> const& branches, ColumnSums<S, G>& sums);

}  // namespace p3d::kernels
