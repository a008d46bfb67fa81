// SPDX-License-Identifier: Apache-2.0
#pragma once
// One transformer layer, pre-norm (GPT-2, Llama): x_mid = x + attention(norm1(x)); y = x_mid + mlp(norm2(x_mid)).
// Forward and backward are written out; what backward needs is saved in BlockActivations, one set per slot.

#include <p3d/config/config.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/model/parameters.hpp>
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
template <class T>
struct NormActivations {
  View2<T> y;      ///< [N, hidden]
  View1<T> mean;   ///< [N], layer norm only
  View1<T> scale;  ///< [N], 1 / standard deviation or 1 / root mean square
};

/// Saved by forward for backward, one set per layer and slot. The layer's input and output are the stage's.
template <class T>
struct BlockActivations {
  NormActivations<T> norm1;
  View2<T> qkv;    ///< [N, qkv], after the rotary embedding
  View2<T> heads;  ///< attention output [N, heads head_dim]
  View1<T> lse;    ///< [micro heads seq_len]
  View2<T> mid;    ///< [N, hidden]
  NormActivations<T> norm2;
  View2<T> up;   ///< [N, up]
  View2<T> act;  ///< [N, ffn]
};

/// Scratch that all layers of all stages of a rank share.
template <class T>
struct BlockScratch {
  View2<T> branch;     ///< [N, hidden]
  View2<T> dnorm;      ///< [N, hidden]
  View2<T> dact;       ///< [N, ffn]
  View2<T> dup;        ///< [N, up]
  View2<T> dheads;     ///< [N, heads head_dim]
  View2<T> dqkv;       ///< [N, qkv]
  View1<T> attention;  ///< attention_workspace
};

/// Takes the views from an arena, or from a counter with the same take() to learn the size.
template <class T, class Source>
NormActivations<T> take_norm(Source& source, BlockSizes const& s) {
  NormActivations<T> n;
  n.y = source.template take<T>(s.tokens, s.hidden);
  if (s.layernorm) n.mean = source.template take<T>(s.tokens);
  n.scale = source.template take<T>(s.tokens);
  return n;
}
template <class T, class Source>
BlockActivations<T> take_block(Source& source, BlockSizes const& s) {
  BlockActivations<T> a;
  a.norm1 = take_norm<T>(source, s);
  a.qkv = source.template take<T>(s.tokens, s.qkv());
  a.heads = source.template take<T>(s.tokens, s.heads * s.head_dim);
  a.lse = source.template take<T>(s.tokens * s.heads);
  a.mid = source.template take<T>(s.tokens, s.hidden);
  a.norm2 = take_norm<T>(source, s);
  a.up = source.template take<T>(s.tokens, s.up());
  a.act = source.template take<T>(s.tokens, s.ffn);
  return a;
}
template <class T, class Source>
BlockScratch<T> take_scratch(Source& source, BlockSizes const& s, std::int64_t attention_elements) {
  BlockScratch<T> b;
  b.branch = source.template take<T>(s.tokens, s.hidden);
  b.dnorm = source.template take<T>(s.tokens, s.hidden);
  b.dact = source.template take<T>(s.tokens, s.ffn);
  b.dup = source.template take<T>(s.tokens, s.up());
  b.dheads = source.template take<T>(s.tokens, s.heads * s.head_dim);
  b.dqkv = source.template take<T>(s.tokens, s.qkv());
  b.attention = source.template take<T>(attention_elements);
  return b;
}

/// A norm of either kind with its parameters.
template <class T>
class NormLayer {
public:
  NormLayer() = default;
  NormLayer(config::Config const& config, Parameters<T> const& params, std::string const& name);
  void forward(ExecSpace const& exec, View2<T const> x, NormActivations<T> const& out) const;
  /// dx (+)= ; the weight gradients add up.
  void backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, NormActivations<T> const& saved,
                kernels::Store store, View2<T> dx) const;

private:
  bool layernorm_ = true;
  double eps_ = 1e-5;
  Vector<T> weight_;
  Vector<T> bias_;
};

/// One layer of the model on one rank.
template <class T>
class TransformerBlock {
public:
  TransformerBlock(config::Config const& config, Parameters<T> const& params, parallel::TensorParallel& tp, int layer);

  /// y = layer(x). Two all-reduces of N x hidden over tp.
  void forward(kernels::TokenRows const& rows, bool training, View2<T const> x, BlockActivations<T> const& saved,
               BlockScratch<T> const& scratch, View2<T> y);
  /// d enters as the gradient of y and leaves as the gradient of x; weight gradients add up. Two all-reduces of N x
  /// hidden, each overlapped with a weight-gradient GEMM.
  void backward(kernels::TokenRows const& rows, View2<T const> x, BlockActivations<T> const& saved,
                BlockScratch<T> const& scratch, View2<T> d);

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
  void backward_input(kernels::TokenRows const& rows, View2<T const> x, View2<T> y, BlockActivations<T>& saved,
                      BlockScratch<T>& scratch, View2<T> d);
  void backward_weight(View2<T const> y, BlockActivations<T> const& saved);

private:
  /// Both parts of the backward of a half layer: x -> x_mid -> y. `keep` empty: the weight gradients are added on the
  /// way, where they hide a message; else the branch's gradient is left in `keep`, and that of the inner linear in
  /// scratch.
  void backward_mlp(kernels::TokenRows const& rows, BlockActivations<T> const& saved, BlockScratch<T> const& scratch,
                    View2<T> keep, View2<T> d);
  void backward_attention(kernels::TokenRows const& rows, View2<T const> x, BlockActivations<T> const& saved,
                          BlockScratch<T> const& scratch, View2<T> keep, View2<T> d);
  /// The gradient of a residual branch behind its dropout: d itself, or in `keep`, or in `scratch`.
  View2<T> branch_gradient(kernels::TokenRows const& rows, View2<T> d, kernels::Dropout const& dropout, View2<T> keep,
                           View2<T> scratch) const;
  kernels::AttentionShape attention_shape(kernels::TokenRows const& rows) const;

  parallel::TensorParallel* tp_;
  BlockSizes sizes_;
  std::int64_t global_heads_ = 0;
  bool rope_ = false;
  double rope_theta_ = 0.0;
  NormLayer<T> norm1_, norm2_;
  Matrix<T> qkv_, attn_out_, up_, down_;
  Vector<T> qkv_bias_, attn_out_bias_, up_bias_, down_bias_;
  kernels::Dropout probability_dropout_, attn_dropout_, mlp_dropout_;
};

}  // namespace p3d::model
