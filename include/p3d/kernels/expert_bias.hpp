// SPDX-License-Identifier: Apache-2.0
#pragma once
// Biases of routed experts and of their router. Rows [offsets[e], offsets[e + 1]) of a matrix are those of the e-th
// expert of the rank, and row e of a bias matrix is that expert's bias. Rank-local. S, Acc and G are explained in
// common.hpp.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// x[r, c] += gates[r] bias[e, c] for the expert e of row r. Empty gates are 1.
template <class S>
void add_expert_bias(ExecSpace const& exec, View1<int const> offsets, View2<S const> bias,
                     Given<View1<Acc<S> const>> gates, View2<S> x);
/// d_gates[r] += dy[r] . bias[e], for the gradient dy of x.
template <class S>
void add_bias_gates_backward(ExecSpace const& exec, View1<int const> offsets, View2<S const> bias, View2<S const> dy,
                             View1<Acc<S>> d_gates);
/// d_bias[e, c] += sum over the rows of e of gates[r] dy[r, c], summed in double in the order of the rows.
template <class S, class G = Acc<S>>
void add_expert_bias_backward(ExecSpace const& exec, View1<int const> offsets, View2<S const> dy,
                              Given<View1<Acc<S> const>> gates, Given<View2<G>> d_bias);

/// logits[r, e] += bias[e].
template <class S>
void add_router_bias(ExecSpace const& exec, View1<S const> bias, View2<Acc<S>> logits);
/// d_bias[e] += sum over rows of d_logits[r, e], summed in double.
template <class A, class G = A>
void add_router_bias_backward(ExecSpace const& exec, View2<A const> d_logits, Given<View1<G>> d_bias);

}  // namespace p3d::kernels
