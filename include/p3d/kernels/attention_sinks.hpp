// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention sinks: each query head has one more logit in the softmax of every query, whose value is 0 (gpt-oss; Xiao et
// al., arXiv 2309.17453, learn a key in this place). Attention runs without it, and its result is corrected once, when
// all keys are merged. With lse and out of attention alone and a sink s of the head:
//
//   lse' = log(exp(lse) + exp(s)),  out' = out exp(lse - lse'),  and s has the probability exp(s - lse')
//
// The backward of attention takes lse' and out' for lse and out: it needs no more, since the value of a sink is 0.
// AttentionShape says samples, queries, heads and values(); rows and statistics are as in attention.hpp.

#include <p3d/kernels/attention.hpp>

namespace p3d::kernels {

/// out = out', lse = lse', for sinks [heads]. O is S, or Acc<S> for a result that will still be rounded.
template <class S, class O = S>
void attention_sinks_forward(ExecSpace const& exec, AttentionShape const& shape, View1<S const> sinks, HeadRows<O> out,
                             View1<Acc<S>> lse);
/// d_sinks[h] -= sum over the head's queries of exp(sinks[h] - lse) delta, summed in double, with lse and delta of the
/// corrected result (attention_delta).
template <class S, class G = Acc<S>>
void attention_sinks_backward(ExecSpace const& exec, AttentionShape const& shape, View1<S const> sinks,
                              View1<Acc<S> const> lse, View1<Acc<S> const> delta, Given<View1<G>> d_sinks);

}  // namespace p3d::kernels
