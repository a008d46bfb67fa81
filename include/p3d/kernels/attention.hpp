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

/// Heads in the rows of a matrix: head h of row r has head_dim elements from data + r * stride + h * head_dim on.
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;
};
/// Those of m from column `first_column` on.
template <class T>
HeadRows<T> heads_of(View2<T> const& m, std::int64_t first_column = 0) {
  return {m.data() + first_column, static_cast<std::int64_t>(m.stride(0))};
}

/// What a call of attention works on. Rows of q are [samples, queries.size()], those of k and v [samples, keys.size()].
struct AttentionShape {
  std::int64_t first_sample = 0;  ///< global number of the first sample (for dropout)
  std::int64_t samples = 0;
  std::int64_t seq_len = 0;  ///< tokens of a whole sample
  base::TokenSet queries, keys;
  std::int64_t heads = 0;     ///< query heads; query head h uses kv head h / (heads / kv_heads)
  std::int64_t kv_heads = 0;  ///< key/value heads
  std::int64_t head_dim = 0;
  std::int64_t first_head = 0;   ///< global number of the first query head (for dropout)
  double scale = 1.0;            ///< 1 / sqrt(head_dim)
  std::int64_t window = 0;       ///< tokens that a query sees, itself included; 0: all before it
  View1<int const> documents{};  ///< [samples, seq_len]: the first token of each token's document; empty: token 0

  /// Numbers of lse and delta, one for each query and head: at (sample * heads + head) * queries.size() + query.
  std::int64_t statistics() const { return samples * heads * queries.size(); }
};

/// Memory, where kernels reach it and on a multiple of 64 bytes, that a call of attention works in. Calls on one
/// execution instance may share it.
struct AttentionScratch {
  void* data = nullptr;
  std::int64_t bytes = 0;
};
/// The bytes that attention of elements of type S works in, forward and backward, for this shape and for every one that
/// has no more samples, tokens and heads; none on hosts, whose threads have scratch of their own.
template <class S>
std::int64_t attention_scratch_bytes(AttentionShape const& largest);

/// Bytes in which each thread of a host widens elements of 16 bits, backward at the most; part of the team's scratch.
std::int64_t attention_panel_bytes(AttentionShape const& shape);

// Keys that no query of a block sees are not computed (documents aside, on devices): work grows with what is seen. No
// atomics: the same call gives the same bits. On hosts so does every number of threads and every split of heads and
// samples; on devices every split of samples, while the vendor's GEMMs may round otherwise for other numbers of heads,
// and in 16 bits probabilities and gradients of scores are rounded to S for them.

/// out (as q) = dropout(softmax(scale q k^T over the visible keys)) v; lse is the log-sum-exp of each row of scaled
/// scores. A query that sees none of the keys: out 0, lse -infinity. O: S, or Acc<S> for results that are not whole
/// yet. Store::add: out and lse hold the result over other keys and get that over both.
template <class S, class O = S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                       AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                       Store store, HeadRows<O> out, View1<Acc<S>> lse);
/// delta = sum over head_dim of out * dout: what backward needs of the output over all keys.
template <class S>
void attention_delta(ExecSpace const& exec, AttentionShape const& shape, HeadRows<S const> out, HeadRows<S const> dout,
                     View1<Acc<S>> delta);
/// The output over all keys, where these keys are all: backward makes `delta` from it on its way.
template <class S>
struct WholeOutput {
  HeadRows<S const> out{};
  View1<Acc<S>> delta{};
};
/// dq, dk and dv over these keys, from lse and delta over all keys. What several queries or heads add up is kept in
/// Acc<S> until it is whole. D: S, or Acc<S> for sums that are not whole yet. With a `whole` output `delta` is its.
template <class S, class D = S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                        AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                        HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q,
                        HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv,
                        WholeOutput<S> const& whole = {});

/// to [rows, columns] = from, converted; rows lie where they lie. Between S and S, or Acc<S> and S.
template <class From, class To>
void copy_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<From const> from,
               Given<HeadRows<To>> to);
/// to [rows, columns] += from.
template <class S>
void add_rows(ExecSpace const& exec, std::int64_t rows, std::int64_t columns, HeadRows<S const> from,
              Given<HeadRows<S>> to);

}  // namespace p3d::kernels
