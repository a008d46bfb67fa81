// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rank-local parts of the cross entropy over a vocabulary shard. Logits are [rows, local vocabulary]; columns from
// `valid_cols` on are padding and take no part. Targets [rows] are global token numbers; a row with target -1 does not
// count. parallel::VocabLoss calls these kernels with the reductions over the shards between them. Logits are of
// storage type S, all statistics of type A = Acc<S> (common.hpp).

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The cap of logits of Gemma 2 (arXiv 2408.00118, section 2): z = cap tanh(z / cap) in place, in front of the other
/// kernels; a cap of 0 launches nothing. Padding columns are capped, too.
template <class S>
void cap_logits(ExecSpace const& exec, double cap, View2<S> logits);
/// The maximum and the sums of one shard, in one pass with a running maximum (Milakov, Gimelshein, arXiv 1805.02867).
/// local_max[r] = max over the valid columns (-infinity where there is none); row_max[r] gets the same value and may
/// then be reduced over the shards. sums is [2, rows]: row 0 = sum of exp(logit - local_max), row 1 = logit of the
/// target where it lies in [vocab_begin, vocab_begin + valid_cols), else 0.
template <class S>
void logits_parts(ExecSpace const& exec, View2<S const> logits, std::int64_t valid_cols, std::int64_t vocab_begin,
                  View1<int const> targets, View1<Acc<S>> local_max, View1<Acc<S>> row_max, View2<Acc<S>> sums);
/// Rescales sums(0, r) *= exp(local_max[r] - row_max[r]). Every shard does so before the sums are added over the
/// shards.
template <class A>
void refer_sums(ExecSpace const& exec, View1<A const> local_max, View1<A const> row_max, View2<A> sums);
/// Combines the parts of all shards, which were gathered. parts is [shards][3][rows]: for each shard the row of its
/// maxima and its two rows of sums, as logits_parts makes them. row_max = the largest maximum; sums row 0 = the sums
/// rescaled to it and added in the order of the shards; sums row 1 = the sum of the target's logits.
template <class A>
void combine_parts(ExecSpace const& exec, int shards, View1<A const> parts, View1<A> row_max, View2<A> sums);
/// lse[r] = row_max[r] + log(sums(0, r)); total(0) += the sum over counted rows of lse[r] - sums(1, r), in double. The
/// host does not wait for the total (take_sums in elementwise.hpp reads it later). With an empty `total` only lse is
/// computed.
template <class A>
void cross_entropy_loss(ExecSpace const& exec, View1<int const> targets, View1<A const> row_max, View2<A const> sums,
                        View1<A> lse, View1<double> total);
/// Turns logits in place into their gradient, scale * (softmax - one_hot(target)); padding columns and uncounted rows
/// become 0. With a cap above 0, logits are those that cap_logits left, z, and the gradient is that of what it was
/// given: one factor more, 1 - (z / cap)^2.
template <class S>
void cross_entropy_backward(ExecSpace const& exec, View1<int const> targets, View1<Acc<S> const> lse,
                            std::int64_t valid_cols, std::int64_t vocab_begin, Acc<S> scale, View2<S> logits,
                            double cap = 0.0);

}  // namespace p3d::kernels
