// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal self-attention with grouped queries (Ainslie et al., arXiv 2305.13245), tiled over queries with the row's
// log-sum-exp saved for the backward pass (Dao et al., arXiv 2205.14135): memory grows linearly in the sequence length.
// Scores, softmax and sums are Acc<S> (common.hpp); each element of a result is rounded once.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// Local heads of one rank. qkv is [rows, (heads + 2 kv_heads) head_dim] = (queries | keys | values), head by head.
struct AttentionShape {
  TokenRows rows{};
  std::int64_t heads = 0;     ///< local query heads; query head h uses kv head h / (heads / kv_heads)
  std::int64_t kv_heads = 0;  ///< local key/value heads
  std::int64_t head_dim = 0;
  std::int64_t first_head = 0;  ///< global number of the first local query head (for dropout)
  std::int64_t global_heads = 0;
  double scale = 1.0;  ///< 1 / sqrt(head_dim)
};

/// Elements of workspace, of type Acc<S>, that backward needs (one per query and head; forward takes the same view and
/// leaves it alone). Score tiles live in the team's scratch memory. Work grows with the causal half of the scores. No
/// atomics: results have the same bits for every number of threads and every split of heads and samples.
std::int64_t attention_workspace(AttentionShape const& shape);
/// Bytes in which each thread of a host widens elements of 16 bits, backward at the most; part of the team's scratch.
std::int64_t attention_panel_bytes(AttentionShape const& shape);

/// out [rows, heads head_dim] = dropout(softmax(scale q k^T, causal)) v; lse [samples * heads * seq_len] is the
/// log-sum-exp of each row of scaled scores, at (sample * heads + head) * seq_len + query.
template <class S>
void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                       View2<S> out, View1<Acc<S>> lse, View1<Acc<S>> workspace);
/// dqkv is overwritten. What several queries or heads add up is kept in Acc<S> until it is whole.
template <class S>
void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout, View2<S const> qkv,
                        View2<S const> out, View1<Acc<S> const> lse, View2<S const> dout, View2<S> dqkv,
                        View1<Acc<S>> workspace);

}  // namespace p3d::kernels
