// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer normalisation (Ba, Kiros, Hinton, arXiv 1607.06450) and RMS normalisation (Zhang, Sennrich, arXiv 1910.07467).
// Rank-local; forward beside backward. x, y, dy, dx: [rows, hidden]; weight, bias and gradients: [hidden]; mean, rstd:
// [rows]. S, Acc, G: see common.hpp; sums over rows are kept in double.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps) (biased variance). `bias` may be empty. Saves mean,
/// rstd.
template <class S>
void layernorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, View1<S const> bias, double eps,
                       View2<S> y, View1<Acc<S>> mean, View1<Acc<S>> rstd);
/// dx (+)= input gradient; dweight += , dbias += (dbias may be empty).
template <class S, class G = Acc<S>>
void layernorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                        View1<Acc<S> const> mean, View1<Acc<S> const> rstd, Store store, View2<S> dx,
                        Given<View1<G>> dweight, Given<View1<G>> dbias);

/// y = x rrms weight, rrms = 1 / sqrt(mean(x^2) + eps). Saves rrms.
template <class S>
void rmsnorm_forward(ExecSpace const& exec, View2<S const> x, View1<S const> weight, double eps, View2<S> y,
                     View1<Acc<S>> rrms);
template <class S, class G = Acc<S>>
void rmsnorm_backward(ExecSpace const& exec, View2<S const> dy, View2<S const> x, View1<S const> weight,
                      View1<Acc<S> const> rrms, Store store, View2<S> dx, Given<View1<G>> dweight);

}  // namespace p3d::kernels
