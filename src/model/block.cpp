// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/block.hpp>

#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/kernels/rope.hpp>

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace p3d::model {

using kernels::Rotation;
using kernels::TokenRows;
using kernels::Store;

BlockSizes block_sizes(config::Config const& c) {
  std::int64_t const tp = c.parallel.tp;
  BlockSizes s;
  s.tokens = c.batch.micro * c.model.seq_len;
  s.hidden = c.model.hidden;
  s.heads = c.model.heads / tp;
  s.kv_heads = c.model.kv_heads / tp;
  s.head_dim = c.model.head_dim();
  s.ffn = c.model.ffn / tp;
  s.gated = c.model.activation == config::Activation::swiglu;
  s.layernorm = c.model.norm == config::Norm::layernorm;
  return s;
}

template <class T>
NormLayer<T>::NormLayer(config::Config const& c, Parameters<T> const& params, std::string const& name)
    : layernorm_(c.model.norm == config::Norm::layernorm),
      eps_(c.model.norm_eps),
      weight_(params.vector(name + ".weight")),
      bias_(params.vector(name + ".bias")) {}

template <class T>
void NormLayer<T>::forward(ExecSpace const& exec, View2<T const> x, NormActivations<T> const& out) const {
  if (layernorm_) {
    kernels::layernorm_forward<T>(exec, x, weight_.value, bias_.value, eps_, out.y, out.mean, out.scale);
  } else {
    kernels::rmsnorm_forward<T>(exec, x, weight_.value, eps_, out.y, out.scale);
  }
}

template <class T>
void NormLayer<T>::backward(ExecSpace const& exec, View2<T const> dy, View2<T const> x, NormActivations<T> const& saved,
                            Store store, View2<T> dx) const {
  if (layernorm_) {
    kernels::layernorm_backward<T>(exec, dy, x, weight_.value, saved.mean, saved.scale, store, dx, weight_.grad,
                                   bias_.grad);
  } else {
    kernels::rmsnorm_backward<T>(exec, dy, x, weight_.value, saved.scale, store, dx, weight_.grad);
  }
}

template <class T>
TransformerBlock<T>::TransformerBlock(config::Config const& c, Parameters<T> const& params,
                                      parallel::TensorParallel& tp, int layer)
    : tp_(&tp),
      sizes_(block_sizes(c)),
      global_heads_(c.model.heads),
      rope_(c.model.position == config::Position::rope),
      rope_theta_(c.model.rope_theta) {
  auto const at = [&](char const* rest) { return fmt::format("layers.{}.{}", layer, rest); };
  norm1_ = NormLayer<T>(c, params, at("norm1"));
  norm2_ = NormLayer<T>(c, params, at("norm2"));
  qkv_ = params.fused_matrix(at("attn.q.weight"), at("attn.v.weight"));
  qkv_bias_ = params.fused_vector(at("attn.q.bias"), at("attn.v.bias"));
  attn_out_ = params.matrix(at("attn.out.weight"));
  attn_out_bias_ = params.vector(at("attn.out.bias"));
  char const* first_up = sizes_.gated ? "mlp.gate" : "mlp.up";
  up_ = params.fused_matrix(at(first_up) + ".weight", at("mlp.up.weight"));
  up_bias_ = params.fused_vector(at(first_up) + ".bias", at("mlp.up.bias"));
  down_ = params.matrix(at("mlp.down.weight"));
  down_bias_ = params.vector(at("mlp.down.bias"));
  auto const site = [&](char const* rest) {
    return kernels::make_dropout(c.model.dropout, c.run.seed, fmt::format("dropout.layers.{}.{}", layer, rest));
  };
  probability_dropout_ = site("attn.probability");
  attn_dropout_ = site("attn.out");
  mlp_dropout_ = site("mlp.out");
}

template <class T>
kernels::AttentionShape TransformerBlock<T>::attention_shape(TokenRows const& rows) const {
  kernels::AttentionShape s;
  s.rows = rows;
  s.heads = sizes_.heads;
  s.kv_heads = sizes_.kv_heads;
  s.head_dim = sizes_.head_dim;
  s.first_head = sizes_.heads * tp_->rank();
  s.global_heads = global_heads_;
  s.scale = 1.0 / std::sqrt(static_cast<double>(sizes_.head_dim));
  return s;
}

template <class T>
void TransformerBlock<T>::forward(TokenRows const& rows, bool training, View2<T const> x, BlockActivations<T> const& a,
                                  BlockScratch<T> const& w, View2<T> y) {
  auto& exec = tp_->exec;
  auto const active = [&](kernels::Dropout const& d) { return training ? d : kernels::Dropout{}; };

  norm1_.forward(exec, x, a.norm1);
  parallel::column_linear_forward<T>(*tp_, a.norm1.y, qkv_.value, qkv_bias_.value, a.qkv);
  if (rope_) {
    kernels::rope<T>(exec, rows, sizes_.heads + sizes_.kv_heads, sizes_.head_dim, rope_theta_, 0, Rotation::forward,
                     a.qkv);
  }
  kernels::attention_forward<T>(exec, attention_shape(rows), active(probability_dropout_), a.qkv, a.heads, a.lse,
                                w.attention);
  parallel::row_linear_forward<T>(*tp_, a.heads, attn_out_.value, w.branch);
  kernels::residual_forward<T>(exec, rows, x, w.branch, attn_out_bias_.value, active(attn_dropout_), a.mid);

  norm2_.forward(exec, a.mid, a.norm2);
  parallel::column_linear_forward<T>(*tp_, a.norm2.y, up_.value, up_bias_.value, a.up);
  if (sizes_.gated) {
    kernels::swiglu_forward<T>(exec, a.up, a.act);
  } else {
    kernels::gelu_forward<T>(exec, a.up, a.act);
  }
  parallel::row_linear_forward<T>(*tp_, a.act, down_.value, w.branch);
  kernels::residual_forward<T>(exec, rows, a.mid, w.branch, down_bias_.value, active(mlp_dropout_), y);
}

template <class T>
void TransformerBlock<T>::backward(TokenRows const& rows, View2<T const> x, BlockActivations<T> const& saved,
                                   BlockScratch<T> const& scratch, View2<T> d) {
  backward_mlp(rows, saved, scratch, {}, d);
  backward_attention(rows, x, saved, scratch, {}, d);
}

template <class T>
void TransformerBlock<T>::backward_input(TokenRows const& rows, View2<T const> x, View2<T> y,
                                         BlockActivations<T>& saved, BlockScratch<T>& scratch, View2<T> d) {
  backward_mlp(rows, saved, scratch, y, d);
  std::swap(saved.up, scratch.dup);
  backward_attention(rows, x, saved, scratch, saved.mid, d);
  std::swap(saved.qkv, scratch.dqkv);
}

template <class T>
void TransformerBlock<T>::backward_weight(View2<T const> y, BlockActivations<T> const& a) {
  auto& exec = tp_->exec;
  parallel::linear_backward_weight<T>(exec, y, a.act, down_.grad, down_bias_.grad);
  parallel::linear_backward_weight<T>(exec, a.up, a.norm2.y, up_.grad, up_bias_.grad);
  parallel::linear_backward_weight<T>(exec, a.mid, a.heads, attn_out_.grad, attn_out_bias_.grad);
  parallel::linear_backward_weight<T>(exec, a.qkv, a.norm1.y, qkv_.grad, qkv_bias_.grad);
}

template <class T>
View2<T> TransformerBlock<T>::branch_gradient(TokenRows const& rows, View2<T> d, kernels::Dropout const& dropout,
                                              View2<T> keep, View2<T> scratch) const {
  bool const kept = keep.data() != nullptr;
  if (!kept && !dropout.active()) return d;
  View2<T> const out = kept ? keep : scratch;
  kernels::residual_backward<T>(tp_->exec, rows, d, dropout, out);
  return out;
}

template <class T>
void TransformerBlock<T>::backward_mlp(TokenRows const& rows, BlockActivations<T> const& a, BlockScratch<T> const& w,
                                       View2<T> keep, View2<T> d) {
  auto& exec = tp_->exec;
  bool const weights = keep.data() == nullptr;
  auto const dbranch = branch_gradient(rows, d, mlp_dropout_, keep, w.branch);
  parallel::row_linear_backward_input<T>(*tp_, dbranch, down_.value, w.dact);
  if (weights) parallel::linear_backward_weight<T>(exec, dbranch, a.act, down_.grad, down_bias_.grad);
  if (sizes_.gated) {
    kernels::swiglu_backward<T>(exec, a.up, w.dact, w.dup);
  } else {
    kernels::gelu_backward<T>(exec, a.up, w.dact, w.dup);
  }
  auto sum = parallel::column_linear_backward_input<T>(*tp_, w.dup, up_.value, w.dnorm);
  if (weights) parallel::linear_backward_weight<T>(exec, w.dup, a.norm2.y, up_.grad, up_bias_.grad);
  sum.wait();
  norm2_.backward(exec, w.dnorm, a.mid, a.norm2, Store::add, d);
}

template <class T>
void TransformerBlock<T>::backward_attention(TokenRows const& rows, View2<T const> x, BlockActivations<T> const& a,
                                             BlockScratch<T> const& w, View2<T> keep, View2<T> d) {
  auto& exec = tp_->exec;
  bool const weights = keep.data() == nullptr;
  auto const dbranch = branch_gradient(rows, d, attn_dropout_, keep, w.branch);
  parallel::row_linear_backward_input<T>(*tp_, dbranch, attn_out_.value, w.dheads);
  if (weights) parallel::linear_backward_weight<T>(exec, dbranch, a.heads, attn_out_.grad, attn_out_bias_.grad);
  kernels::attention_backward<T>(exec, attention_shape(rows), probability_dropout_, a.qkv, a.heads, a.lse, w.dheads,
                                 w.dqkv, w.attention);
  if (rope_) {
    kernels::rope<T>(exec, rows, sizes_.heads + sizes_.kv_heads, sizes_.head_dim, rope_theta_, 0, Rotation::backward,
                     w.dqkv);
  }
  auto sum = parallel::column_linear_backward_input<T>(*tp_, w.dqkv, qkv_.value, w.dnorm);
  if (weights) parallel::linear_backward_weight<T>(exec, w.dqkv, a.norm1.y, qkv_.grad, qkv_bias_.grad);
  sum.wait();
  norm1_.backward(exec, w.dnorm, x, a.norm1, Store::add, d);
}

template class NormLayer<float>;
template class NormLayer<double>;
template class TransformerBlock<float>;
template class TransformerBlock<double>;

}  // namespace p3d::model
