// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer normalisation (Ba, Kiros, Hinton, arXiv 1607.06450) and RMS normalisation (Zhang, Sennrich, arXiv 1910.07467).
// Rank-local; forward beside backward. x, y, dy, dx: [rows, hidden]; weight, bias and gradients: [hidden]; mean, rstd:
// [rows].

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps) (biased variance). `bias` may be empty. Saves mean,
/// rstd.
template <class T>
void layernorm_forward(ExecSpace const& exec, View2<T const> x, View1<T const> weight, View1<T const> bias, double eps,
                       View2<T> y, View1<T> mean, View1<T> rstd);
/// dx (+)= input gradient; dweight += , dbias += (dbias may be empty).
template <class T>
void layernorm_backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, View1<T const> weight,
                        View1<T const> mean, View1<T const> rstd, Store store, View2<T> dx, View1<T> dweight,
                        View1<T> dbias);

/// y = x rrms weight, rrms = 1 / sqrt(mean(x^2) + eps). Saves rrms.
template <class T>
void rmsnorm_forward(ExecSpace const& exec, View2<T const> x, View1<T const> weight, double eps, View2<T> y,
                     View1<T> rrms);
template <class T>
void rmsnorm_backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, View1<T const> weight,
                      View1<T const> rrms, Store store, View2<T> dx, View1<T> dweight);

}  // namespace p3d::kernels
