// SPDX-License-Identifier: Apache-2.0
#pragma once
// One transformer layer, pre-norm (GPT-2, Llama): x_mid = x + attention(norm1(x)); y = x_mid + mlp(norm2(x_mid)).
// Forward and backward are written out; what backward needs is saved in BlockActivations, one set per slot.

#include <p3d/config/config.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/linear.hpp>

namespace p3d::model {

/// Sizes of one rank's part of a layer. N = tokens of a microbatch.
struct BlockSizes {
  std::int64_t tokens = 0;  ///< N = micro * seq_len
  std::int64_t hidden = 0;
  std::int64_t heads = 0;     ///< local query heads
  std::int64_t kv_heads = 0;  ///< local key/value heads
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;  ///< local
  bool gated = false;    ///< SwiGLU: the up projection is (gate | up), 2 ffn wide
  bool layernorm = true;
  std::int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t up() const { return gated ? 2 * ffn : ffn; }
};
BlockSizes block_sizes(config::Config const& config);

/// A norm's output and statistics.
template <class P>
struct NormActivations {
  View2<typename P::Storage> y;         ///< [N, hidden]
  View1<typename P::Accumulate> mean;   ///< [N], layer norm only
  View1<typename P::Accumulate> scale;  ///< [N], 1 / standard deviation or 1 / root mean square
};

/// Saved by forward for backward, one set per layer and slot. The layer's input and output are the stage's.
template <class P>
struct BlockActivations {
  NormActivations<P> norm1;
  View2<typename P::Storage> qkv;     ///< [N, qkv], after the rotary embedding
  View2<typename P::Storage> heads;   ///< attention output [N, heads head_dim]
  View1<typename P::Accumulate> lse;  ///< [micro heads seq_len]
  View2<typename P::Storage> mid;     ///< [N, hidden]
  NormActivations<P> norm2;
  View2<typename P::Storage> up;   ///< [N, up]
  View2<typename P::Storage> act;  ///< [N, ffn]
};

/// Scratch that all layers of all stages of a rank share.
template <class P>
struct BlockScratch {
  View2<typename P::Storage> branch;        ///< [N, hidden]
  View2<typename P::Storage> dnorm;         ///< [N, hidden]
  View2<typename P::Storage> dact;          ///< [N, ffn]
  View2<typename P::Storage> dup;           ///< [N, up]
  View2<typename P::Storage> dheads;        ///< [N, heads head_dim]
  View2<typename P::Storage> dqkv;          ///< [N, qkv]
  View1<typename P::Accumulate> attention;  ///< attention_workspace
};

/// Takes the views from an arena, or from a counter with the same take() to learn the size.
template <class P, class Source>
NormActivations<P> take_norm(Source& source, BlockSizes const& s) {
  using Sum = typename P::Accumulate;
  NormActivations<P> n;
  n.y = source.template take<typename P::Storage>(s.tokens, s.hidden);
  if (s.layernorm) n.mean = source.template take<Sum>(s.tokens);
  n.scale = source.template take<Sum>(s.tokens);
  return n;
}
template <class P, class Source>
BlockActivations<P> take_block(Source& source, BlockSizes const& s) {
  using S = typename P::Storage;
  BlockActivations<P> a;
  a.norm1 = take_norm<P>(source, s);
  a.qkv = source.template take<S>(s.tokens, s.qkv());
  a.heads = source.template take<S>(s.tokens, s.heads * s.head_dim);
  a.lse = source.template take<typename P::Accumulate>(s.tokens * s.heads);
  a.mid = source.template take<S>(s.tokens, s.hidden);
  a.norm2 = take_norm<P>(source, s);
  a.up = source.template take<S>(s.tokens, s.up());
  a.act = source.template take<S>(s.tokens, s.ffn);
  return a;
}
template <class P, class Source>
BlockScratch<P> take_scratch(Source& source, BlockSizes const& s, std::int64_t attention_elements) {
  using S = typename P::Storage;
  BlockScratch<P> b;
  b.branch = source.template take<S>(s.tokens, s.hidden);
  b.dnorm = source.template take<S>(s.tokens, s.hidden);
  b.dact = source.template take<S>(s.tokens, s.ffn);
  b.dup = source.template take<S>(s.tokens, s.up());
  b.dheads = source.template take<S>(s.tokens, s.heads * s.head_dim);
  b.dqkv = source.template take<S>(s.tokens, s.qkv());
  b.attention = source.template take<typename P::Accumulate>(attention_elements);
  return b;
}

/// A norm of either kind.
template <class P>
class NormLayer {
public:
  using S = typename P::Storage;
  explicit NormLayer(config::Config const& config);
  void forward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> x, NormActivations<P> const& out) const;
  /// dx (+)= ; the weight gradients add up.
  void backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                NormActivations<P> const& saved, kernels::Store store, View2<S> dx) const;

private:
  bool layernorm_;
  double eps_;
};

/// One layer of the model on one rank. It holds no weights: each call is given the layer's.
template <class P>
class TransformerBlock {
public:
  using S = typename P::Storage;
  TransformerBlock(config::Config const& config, parallel::TensorParallel& tp, int layer);

  /// y = layer(x). Two all-reduces of N x hidden over tp.
  void forward(BlockWeights<P> const& w, kernels::TokenRows const& rows, bool training, View2<S const> x,
               BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> y);
  /// d enters as the gradient of y and leaves as the gradient of x; weight gradients add up. Two all-reduces of N x
  /// hidden, each overlapped with a weight-gradient GEMM.
  void backward(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
                BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> d);

  /// The same in two parts (arXiv 2401.10241, section 2). The input part turns d; of the weight gradients it adds the
  /// norms', which fall out of its sums. The weight part adds the others, those of the four linears and their biases.
  ///
  /// What the weight part needs costs no memory: each gradient lies where an activation is dead by then.
  ///   gradient of   dead activation        how it gets there
  ///   mlp branch    y (the layer's output) a copy (or the dropout mask's result)
  ///   up            up                     the views of slot and scratch change places
  ///   attn branch   mid                    as for the mlp branch
  ///   qkv           qkv                    as for up
  /// With norm1.y, heads, norm2.y and act, which the weight part multiplies them with, these are alive until it ends.
  /// y must not be read by a message any more.
  void backward_input(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x, View2<S> y,
                      BlockActivations<P>& saved, BlockScratch<P>& scratch, View2<S> d);
  /// Reads no weights, only the places of their gradients.
  void backward_weight(BlockWeights<P> const& w, View2<S const> y, BlockActivations<P> const& saved);

private:
  /// Both parts of the backward of a half layer: x -> x_mid -> y. `keep` empty: the weight gradients are added on the
  /// way, where they hide a message; else the branch's gradient is left in `keep`, and that of the inner linear in
  /// scratch.
  void backward_mlp(BlockWeights<P> const& w, kernels::TokenRows const& rows, BlockActivations<P> const& saved,
                    BlockScratch<P> const& scratch, View2<S> keep, View2<S> d);
  void backward_attention(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
                          BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> keep, View2<S> d);
  /// The gradient of a residual branch behind its dropout: d itself, or in `keep`, or in `scratch`.
  View2<S> branch_gradient(kernels::TokenRows const& rows, View2<S> d, kernels::Dropout const& dropout, View2<S> keep,
                           View2<S> scratch) const;
  kernels::AttentionShape attention_shape(kernels::TokenRows const& rows) const;

  parallel::TensorParallel* tp_;
  BlockSizes sizes_;
  std::int64_t global_heads_ = 0;
  bool rope_ = false;
  double rope_theta_ = 0.0;
  NormLayer<P> norm_;
  kernels::Dropout probability_dropout_, attn_dropout_, mlp_dropout_;
};

}  // namespace p3d::model
