// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer normalisation (Ba, Kiros, Hinton, arXiv 1607.06450) and RMS normalisation (Zhang, Sennrich, arXiv 1910.07467).
// Rank-local; forward beside backward. x, y, dy and dx are [rows, hidden]; weight, bias and their gradients [hidden];
// mean and rstd [rows]. S, Acc and G are explained in common.hpp; sums over rows are kept in double.
//
// A norm stands between two residual branches: its input is the residual sum that one branch ends in, its output begins
// the next. Both passes have forms that are fused with these ends: fewer launches, and rows are read once.

#include <p3d/kernels/column_sums.hpp>
#include <p3d/kernels/common.hpp>

#include <type_traits>

namespace p3d::kernels {

/// The weight of a norm. What the formulas below call weight is values + offset: with offset 1 (Gemma) a weight of
/// zeros leaves what it multiplies as it is.
template <class S>
struct NormWeight {
  template <class Values>
  requires std::is_convertible_v<Values const&, View1<S const>> NormWeight(Values const& v, double o = 0.0)
      : values(v), offset(static_cast<Acc<S>>(o)) {}  // NOLINT: a view may do

  View1<S const> values;  ///< [hidden]
  Acc<S> offset;
};

/// The residual sum that a norm reads, x + dropout(branch + bias), as residual_forward (elementwise.hpp) computes it.
/// An empty x stands for zeros. With an empty branch the sum is not computed: the norm reads a matrix that is there
/// already.
template <class S>
struct ResidualSum {
  TokenRows rows{};
  View2<S const> x{}, branch{};
  View1<S const> bias{};
  Dropout dropout{};
};

/// Work on the branches on both sides of a norm that the norm's backward does in the same pass.
template <class S, class G = Acc<S>>
struct NormBranches {
  View2<S const> after{};  ///< the gradient of the branch that begins with the norm, behind its dropout; may be dx
  View1<G> after_bias{};   ///< += column sums of `after`; empty: nothing
  /// The tokens of the matrices' rows, for the dropout of the branch before the norm.
  TokenRows rows{};
  Dropout dropout{};  ///< dropout of the branch that ends before the norm
  View2<S> before{};  ///< = dropout mask * scale * dx: that branch's gradient; may be dy, `after` or x. Empty: nothing
                      ///< is done.
};

/// y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps) (biased variance). `bias` may be empty. Saves mean and
/// rstd for backward.
template <class S>
void layernorm_forward(ExecSpace const& exec, View2<S const> x, NormWeight<S> const& weight, View1<S const> bias,
                       double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd);
/// layernorm_forward of a residual sum, which is computed and stored to x first; y may be the sum's branch.
template <class S>
void layernorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, NormWeight<S> const& weight,
                       View1<S const> bias, double eps, View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd);
/// The backward pass of the layer norm: dx (+)= input gradient, where dx that is overwritten may be x; dweight and
/// dbias are added to (dbias may be empty).
template <class S, class G = Acc<S>>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias);
/// layernorm_backward, fused with the work that `branches` describes and with the registered sums. On the host this
/// takes two launches, after which no sum is left to compute. On devices it takes one, after which the gradients of the
/// vectors are registered in `sums`: finish() them before others use the workspace.
template <class S, class G = Acc<S>>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias, NormBranches<S, G> const& branches,
                        ColumnSums<S, G>& sums);

/// y = x rrms weight, rrms = 1 / sqrt(mean(x^2) + eps). Saves rrms for backward.
template <class S>
void rmsnorm_forward(ExecSpace const& exec, View2<S const> x, NormWeight<S> const& weight, double eps, View2<S> y,
                     View1<Acc<S>> rrms);
/// rmsnorm_forward of a residual sum, which is computed and stored to x first; y may be the sum's branch.
template <class S>
void rmsnorm_forward(ExecSpace const& exec, ResidualSum<S> const& sum, View2<S> x, NormWeight<S> const& weight,
                     double eps, View2<S> y, View1<Acc<S>> rrms);
/// The backward pass of the RMS norm: dx (+)= input gradient, where dx that is overwritten may be x; dweight is added
/// to.
template <class S, class G = Acc<S>>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight);
/// rmsnorm_backward, fused in the same way as layernorm_backward above.
template <class S, class G = Acc<S>>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, NormWeight<S> const& weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight,
                      NormBranches<S, G> const& branches, ColumnSums<S, G>& sums);

}  // namespace p3d::kernels
