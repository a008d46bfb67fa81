// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows at their experts. The gate of a row multiplies what goes into the expert's last linear, not what comes out: then
// the gate's gradient is known where the expert is, and outputs need not be kept. Rank-local. S, Acc: see common.hpp.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// act[r] *= gates[r]. act [rows, ffn], gates [rows].
template <class S>
void gate_rows(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act);
/// Backward, from act before it was gated: d_gates[r] = d_act[r] . act[r]; then act[r] *= gates[r] (as forward did) and
/// d_act[r] *= gates[r].
template <class S>
void gate_rows_backward(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act, View2<S> d_act,
                        View1<Acc<S>> d_gates);

/// Results of a slot come from `copies` ranks, those of rank c from row c * slots on: out[t, k * copies + c] =
/// c * slots + place[t, k], or -1. place [tokens, top_k].
void places_of_copies(ExecSpace const& exec, View2<int const> place, int copies, View2<int> out);
/// sums[t, k] = sum over c of values[places[t, k * copies + c]]; -1: nothing.
template <class A>
void sum_copies(ExecSpace const& exec, View1<A const> values, View2<int const> places, int copies, View2<A> sums);

/// out[i] (+)= sum over b, in order, of blocks[b * each + i], blocks [count * each, columns], out [at most each,
/// columns].
template <class S>
void sum_blocks(ExecSpace const& exec, View2<S const> blocks, int count, Store store, View2<S> out);

/// x = 1 / (1 + exp(-x)), in place; and from y, what came out: d *= y (1 - y).
template <class A>
void sigmoid_in_place(ExecSpace const& exec, View1<A> x);
template <class A>
void sigmoid_backward(ExecSpace const& exec, View1<A const> y, View1<A> d);

/// x *= factor.
template <class A>
void scale(ExecSpace const& exec, A factor, View1<A> x);

/// x times uniform(1 - jitter, 1 + jitter), one number for each element of each token: a function of (key, sample,
/// token, column). x, y [rows, hidden]; y may be x. Its own backward.
template <class S>
void jitter_rows(ExecSpace const& exec, TokenRows rows, base::RandomKey key, double jitter, View2<S const> x,
                 View2<S> y);

}  // namespace p3d::kernels
