// SPDX-License-Identifier: Apache-2.0
#pragma once
// Vocabulary-parallel embedding and cross entropy (arXiv 1909.08053, section 3): each rank of the tp group holds a
// block of vocabulary rows; the logits are never gathered. Padding rows (the vocabulary rounded up to a multiple of tp)
// take no part.

#include <p3d/parallel/linear.hpp>

#include <cstdint>

namespace p3d::parallel {

/// The block of the vocabulary that this rank holds.
struct VocabShard {
  std::int64_t begin = 0;       ///< global number of the first local row
  std::int64_t rows = 0;        ///< local rows, padding included
  std::int64_t valid_rows = 0;  ///< local rows that exist in the vocabulary
  bool whole = false;           ///< each rank of tp has all rows, for the tokens of its own rows
};

/// The shard of this rank, of a vocabulary padded to a multiple of tp.
VocabShard vocab_shard(std::int64_t vocab_size, TensorParallel const& tp);
/// Block `number` of a vocabulary in `blocks` equal blocks.
VocabShard vocab_shard(std::int64_t vocab_size, int blocks, int number);
/// All rows, on each rank (parallel.embedding = "replicated").
VocabShard whole_vocabulary(std::int64_t vocab_size);

/// out [own rows, hidden] = the rows of `tokens` [N] of the global table; own rows are own_rows() (rows.hpp) of N.
/// `all` [N, hidden] is memory for sequence parallelism; without, it may be empty. It takes one all-reduce of N x
/// hidden, under sequence parallelism one reduce-scatter, and no message where the shard is whole.
template <class S>
void vocab_embedding_forward(TensorParallel& tp, VocabShard const& shard, View1<int const> tokens,
                             View2<S const> weight, View2<S> out, View2<S> all);

/// dweight += the gradient of vocab_embedding_forward(); `dout` [own rows, hidden] and `all` as there. It takes one
/// all-gather of N x hidden under sequence parallelism. A whole shard's gradient is that of the rank's own rows alone,
/// without a message.
template <class S, class G>
void vocab_embedding_backward(TensorParallel& tp, VocabShard const& shard, View1<int const> tokens, View2<S const> dout,
                              View2<S> all, View2<G> dweight);

/// Buffers of the loss, in the type A of its sums: lse [tokens], one for each activation slot; row_max [tokens] and
/// sums [2, tokens], which all slots share.
template <class A>
struct LossBuffers {
  View1<A> lse;
  View1<A> row_max;
  View2<A> sums;
};

/// total(0) += the sum over the local samples' tokens of -log softmax(logits)[target], the same on every rank of the
/// group. Saves lse. It takes two all-reduces: of tokens (maximum) and of 2 x tokens numbers (sums).
template <class S>
void vocab_loss_forward(TensorParallel& tp, VocabShard const& shard, View2<S const> logits, View1<int const> targets,
                        LossBuffers<device::accumulate_t<S>> const& buffers, View1<double> total);

/// Turns logits in place into scale (softmax - one_hot), without a message. `cap` is that of kernels::cap_logits, which
/// the logits went through; 0: none.
template <class S>
void vocab_loss_backward(TensorParallel& tp, VocabShard const& shard, View1<int const> targets,
                         View1<device::accumulate_t<S> const> lse, device::accumulate_t<S> scale, View2<S> logits,
                         double cap = 0.0);

}  // namespace p3d::parallel
