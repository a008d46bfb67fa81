// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels on the rows that an expert works on. The gate of a row multiplies the input of the expert's last linear
// layer, not its output: then the gate's gradient is known where the expert is, and outputs need not be kept.
// Rank-local. S and Acc are explained in common.hpp.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// act[r] *= gates[r], for act [rows, ffn] and gates [rows].
template <class S>
void gate_rows(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act);
/// The backward pass of gate_rows, from act before it was gated: d_gates[r] = d_act[r] . act[r]; then act[r] *=
/// gates[r] (as forward did) and d_act[r] *= gates[r].
template <class S>
void gate_rows_backward(ExecSpace const& exec, View1<Acc<S> const> gates, View2<S> act, View2<S> d_act,
                        View1<Acc<S>> d_gates);

/// Places of a slot's partial results, which come from `copies` ranks; results of rank c begin at row c * slots. out[t,
/// k * copies + c] = c * slots + place[t, k], or -1 where place is -1. place is [tokens, top_k], slots = tokens *
/// top_k.
void places_of_copies(ExecSpace const& exec, View2<int const> place, int copies, View2<int> out);
/// sums[t, k] = sum over c, in that order, of values[places[t, k * copies + c]]; a place of -1 adds nothing.
template <class A>
void sum_copies(ExecSpace const& exec, View1<A const> values, View2<int const> places, int copies, View2<A> sums);

/// out[i] (+)= sum over b, in order, of blocks[b * each + i]. blocks is [count * each, columns], out [at most `each`,
/// columns].
template <class S>
void sum_blocks(ExecSpace const& exec, View2<S const> blocks, int count, Store store, View2<S> out);

/// x = 1 / (1 + exp(-x)), in place.
template <class A>
void sigmoid_in_place(ExecSpace const& exec, View1<A> x);
/// d *= y (1 - y), where y is the result of sigmoid_in_place.
template <class A>
void sigmoid_backward(ExecSpace const& exec, View1<A const> y, View1<A> d);

/// x *= factor, in place.
template <class A>
void scale(ExecSpace const& exec, A factor, View1<A> x);

/// y = x times uniform(1 - jitter, 1 + jitter), one random number for each element of each token: a function of (key,
/// sample, token, column), and so of no layout. x and y are [rows, hidden]; y may be x. The backward pass is the same
/// function with the same key.
template <class S>
void jitter_rows(ExecSpace const& exec, TokenRows rows, base::RandomKey key, double jitter, View2<S const> x,
                 View2<S> y);

}  // namespace p3d::kernels
