// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameter updates on flat ranges, one pass over memory each.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// One AdamW step (Loshchilov, Hutter, arXiv 1711.05101, algorithm 2, decoupled weight decay):
///   g' = grad_scale g;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
///   p = p - lr (m / correction1 / (sqrt(v / correction2) + eps) + decay p),  correction_i = 1 - beta_i^t.
/// Reads 4 and writes 4 numbers per element: the gradient's zero for the next step is written while it is in the cache.
struct AdamW {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0, correction1 = 1, correction2 = 1, grad_scale = 1;
  bool clear_gradient = true;
};
template <class T>
void adamw(ExecSpace const& exec, AdamW const& step, View1<T> p, View1<T> g, View1<T> m, View1<T> v);

/// p = p - lr (grad_scale g + decay p). Reads 2 and writes 2 numbers per element.
struct Sgd {
  double lr = 0, decay = 0, grad_scale = 1;
  bool clear_gradient = true;
};
template <class T>
void sgd(ExecSpace const& exec, Sgd const& step, View1<T> p, View1<T> g);

}  // namespace p3d::kernels
