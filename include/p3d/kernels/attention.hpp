// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention with grouped queries (Ainslie et al., arXiv 2305.13245), in blocks of queries with the row's
// log-sum-exp saved for the backward pass (Dao et al., arXiv 2205.14135): memory grows linearly in the sequence length.
// Queries and keys may be any two sets of the tokens of a sample; results over several sets of keys merge by their
// log-sum-exp. Scores, softmax and sums are Acc<S> (common.hpp); each element of a result is rounded once.
//
// A query of token i sees the keys of tokens [max(first token of its document, i + 1 - window), i].

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// A view of the heads in a matrix's rows: head h of row r has `width` elements from data + r * stride + h * width on.
/// Heads of queries, keys and their gradients are head_dim wide; those of values, outputs and their gradients are
/// AttentionShape::values() wide. The memory belongs to the matrix.
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;  ///< elements from one row to the next
};
/// The heads of m, of which the first begins at column `first_column`.
template <class T>
HeadRows<T> heads_of(View2<T> const& m, std::int64_t first_column = 0) {
  return {m.data() + first_column, static_cast<std::int64_t>(m.stride(0))};
}

/// The problem that one call of attention solves. Rows of q are [samples, queries.size()], those of k and v [samples,
/// keys.size()].
struct AttentionShape {
  std::int64_t first_sample = 0;  ///< global number of the first sample (for dropout)
  std::int64_t samples = 0;
  std::int64_t seq_len = 0;  ///< tokens of a whole sample
  /// Numbers of the tokens, within a sample, whose queries and whose keys this call has; under context parallelism
  /// these are two different subsets.
  base::TokenSet queries, keys;
  std::int64_t heads = 0;        ///< query heads; query head h uses kv head h / (heads / kv_heads)
  std::int64_t kv_heads = 0;     ///< key/value heads
  std::int64_t head_dim = 0;     ///< width of a head of queries and keys
  std::int64_t value_dim = 0;    ///< width of a head of values and outputs; 0: head_dim
  std::int64_t first_head = 0;   ///< global number of the first query head (for dropout)
  double scale = 1.0;            ///< factor of the scores, usually 1 / sqrt(head_dim)
  double softcap = 0.0;          ///< c above 0: scaled scores s become c tanh(s / c) (arXiv 2408.00118); 0: none
  std::int64_t window = 0;       ///< tokens that a query sees, itself included; 0: all before it
  View1<int const> documents{};  ///< [samples, seq_len]: the first token of each token's document; empty: token 0

  /// The width of a head of values, of the output, and of the gradients of both.
  KOKKOS_INLINE_FUNCTION std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  /// The length of lse and of delta. Each query and head has one number, at (sample * heads + head) * queries.size() +
  /// query.
  std::int64_t statistics() const { return samples * heads * queries.size(); }
};

/// The memory that a call of attention works in. It begins on a multiple of 64 bytes, where kernels reach it. The
/// caller owns it; calls on one execution instance may share it.
struct AttentionScratch {
  void* data = nullptr;
  std::int64_t bytes = 0;
};
/// The bytes of AttentionScratch that attention of elements of type S needs, forward and backward. They suffice for
/// this shape and for every one that has no more samples, tokens and heads, of the same widths. Hosts need 0: their
/// threads have scratch of their own.
template <class S>
std::int64_t attention_scratch_bytes(AttentionShape const& largest);

// Attention skips keys that no query of a block sees, so its work grows with what is seen. (On devices it skips nothing
// for the sake of documents.) It uses no atomics: the same call gives the same bits. On hosts the bits depend neither
// on the number of threads nor on how heads and samples are split over ranks. On devices they do not depend on how
// samples are split; the vendor's GEMMs may round otherwise for another number of heads, and in 16 bits probabilities
// and gradients of scores are rounded to S for them.

/// out [rows of q, heads * values()] = dropout(softmax(scale q k^T over the visible keys)) v; lse is the log-sum-exp of
/// each row of scaled and capped scores. A query that sees none of the keys has out 0 and lse -infinity. O is S, or
/// Acc<S> for a result that other keys will still be merged into. With Store::add, out and lse hold the result over
/// other keys and become the result over both sets.
template <class S, class O = S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                       AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                       Store store, HeadRows<O> out, View1<Acc<S>> lse);
/// delta = sum over a head's columns of out * dout: all that backward needs of the output over all keys.
template <class S>
void attention_delta(ExecSpace const& exec, AttentionShape const& shape, HeadRows<S const> out, HeadRows<S const> dout,
                     View1<Acc<S>> delta);
/// The output over all keys, given to backward where its keys are all there are: then backward computes `delta` itself.
template <class S>
struct WholeOutput {
  HeadRows<S const> out{};
  View1<Acc<S>> delta{};
};
/// dq, dk and dv over these keys, from lse and delta over all keys. Sums over several queries or heads are kept in
/// Acc<S> until they are complete. D is S, or Acc<S> where other keys will still add to the results. With a `whole`
/// output, `delta` must be whole.delta; backward writes it before it reads it.
template <class S, class D = S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                        AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                        HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q,
                        HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv,
                        WholeOutput<S> const& whole = {});

/// Copies `from` to `to`, both [rows, columns], and converts the elements. Each matrix keeps its own row stride.
/// Instantiated for S to S and for Acc<S> to S.
template <class From, class To>
void copy_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<From const> from,
               Given<HeadRows<To>> to);
/// Adds `from` to `to`, both [rows, columns].
template <class S>
void add_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<S const> from,
              Given<HeadRows<S>> to);

}  // namespace p3d::kernels
