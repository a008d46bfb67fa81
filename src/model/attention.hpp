// SPDX-License-Identifier: Apache-2.0
#pragma once
// The attention sub-layers. An attention projects the norm's output to what it keeps of each token (c.a.qkv) and then
// attends: to the tokens of the microbatch, by context parallelism wherever their keys are (parallel/context.hpp), or
// to the tokens of texts whose keys and values are cached.

#include "sublayer.hpp"

#include <p3d/kernels/rope.hpp>
#include <p3d/layout/rope.hpp>
#include <p3d/parallel/qk_norm.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::model {

/// All kinds of attention have in common their place in a layer, and the tokens that a token sees.
template <class P>
class Attention : public LinearSubLayer<P> {
public:
  using S = typename P::Storage;
  Attention(config::Config const& c, parallel::TensorParallel& tp, int layer)
      : LinearSubLayer<P>(c, tp, layer), window_(c.model.window_of(layer)), division_(layout::context_division(c)) {
    auto const site = [&](char const* name, double multiplier) {
      return kernels::make_dropout(c.model.dropout, c.run.seed, fmt::format("dropout.layers.{}.attn.{}", layer, name),
                                   multiplier);
    };
    probability_dropout_ = site("probability", 1.0);
    probability_dropout_.sample_tokens = c.model.seq_len;
    branch_dropout_ = site("out", c.model.residual_multiplier);
  }
  BranchEnds<P> ends(LayerCall<P> const& c) const final {
    auto const input = this->stream_.norms_before() ? c.a.norm1_y : c.x;
    return {c.x,
            input,
            c.w.norm1,
            c.a.norm1(),
            c.a.branch1,
            c.w.post_norm1,
            c.a.post_norm1(),
            c.w.attn_out_bias,
            branch_dropout_};
  }

protected:
  /// Attention of a call's tokens: c.a.qkv -> c.a.heads, c.a.lse.
  virtual void attend(LayerCall<P> const& c) const = 0;
  void apply(LayerCall<P> const& c) const final { attend(c); }

  typename parallel::ContextAttention<S>::Call context_call(LayerCall<P> const& c) const {
    typename parallel::ContextAttention<S>::Call call;
    call.division.seq_len = c.rows.seq_len;
    if (c.rows.tokens.size() > 0) call.division = division_.of_length(c.rows.sample_tokens);
    call.first_sample = c.rows.first_sample;
    call.samples = c.rows.samples;
    call.window = window_;
    call.documents = c.rows.documents;
    if (trains(c.kind)) call.dropout = probability_dropout_;
    return call;
  }
  std::int64_t window_;

private:
  layout::ContextDivision division_;
  kernels::Dropout probability_dropout_, branch_dropout_;
};

/// Attention with grouped queries (GPT-2, Llama): one linear for queries, keys and values. A norm and a rotation by
/// positions may follow it.
template <class P>
class GroupedQueryAttention final : public Attention<P> {
public:
  using S = typename P::Storage;
  using typename LinearSubLayer<P>::Parts;
  using typename SubLayer<P>::G;
  using typename SubLayer<P>::Sums;
  GroupedQueryAttention(config::Config const& c, parallel::TensorParallel& tp, int layer) : Attention<P>(c, tp, layer) {
    scale_ = c.model.attention_scale();
    norm_ = {.heads = sizes_.heads,
             .kv_heads = sizes_.kv_heads,
             .head_dim = sizes_.head_dim,
             .full = c.model.qk_norm == config::QkNorm::full,
             .ranks = tp.size(),
             .eps = c.model.norm_eps,
             .offset = static_cast<double>(c.model.norm_offset)};
    if (!c.model.rotates(layer)) return;
    if (c.model.rope_pairs == config::RopePairs::neighbours) pairs_ = kernels::RopePairs::neighbours;
    rope_factor_ = layout::rope_factor(c.model, layer);
    query_beta_ = c.model.rope_query_beta;
    query_length_ = c.model.rope_original_seq_len;
    auto const frequencies = layout::rope_frequencies(c.model, layer);
    rope_frequencies_ = device::Owned1<double>("p3d::model::rope_frequencies", frequencies.size());
    Kokkos::deep_copy(rope_frequencies_,
                      Kokkos::View<double const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
                          frequencies.data(), frequencies.size()));
  }

private:
  using LinearSubLayer<P>::tp_;
  using LinearSubLayer<P>::sizes_;
  Parts parts(LayerCall<P> const& c) const override {
    auto& a = c.a;
    auto& t = c.t;
    return {c.w.qkv, c.w.attn_out, c.w.qkv_bias, a.qkv, a.heads, t.dqkv, t.dheads, a.qkv, t.dqkv};
  }
  void project(LayerCall<P> const& c, View2<S const> normed) const override {
    parallel::column_linear_forward<S>(*tp_, normed, c.w.qkv.value, c.w.qkv_bias.value, c.a.qkv);
    if (sizes_.qk_norms > 0)
      parallel::qk_norm_forward<S>(*tp_, norm_, norm_weights(c), c.t.qk_sums, c.a.qkv, c.a.qk, c.a.qk_scale);
    rotate(c, kernels::Rotation::forward, c.a.qkv);
  }
  void attend(LayerCall<P> const& c) const override {
    if (c.cache) return attend_cached(c);
    auto const call = this->context_call(c);
    c.t.attention->exchange(call, kept_qkv(c));
    c.t.attention->forward(call, kept_qkv(c), c.a.heads, c.a.lse);
  }
  void prepare_backward(LayerCall<P> const& c) const override {
    if (c.discarded.attention) c.t.attention->forward(this->context_call(c), kept_qkv(c), c.a.heads, c.a.lse);
  }
  void apply_backward(LayerCall<P> const& c, Sums& sums) const override {
    c.t.attention->backward(this->context_call(c), kept_qkv(c), c.a.heads, c.a.lse, c.t.dheads, c.t.dqkv);
    rotate(c, kernels::Rotation::backward, c.t.dqkv);
    if (sizes_.qk_norms > 0)
      parallel::qk_norm_backward<S, G>(*tp_, norm_, norm_weights(c), c.t.qk_sums, c.t.dqkv, c.a.qk, c.a.qk_scale,
                                       {c.w.q_norm.grad, c.w.k_norm.grad}, sums);
  }

  void attend_cached(LayerCall<P> const& c) const {
    auto const& cache = *c.cache;
    kernels::AttentionShape shape;
    shape.samples = c.rows.samples;
    shape.seq_len = c.rows.seq_len;
    shape.heads = sizes_.heads;
    shape.kv_heads = sizes_.kv_heads;
    shape.head_dim = sizes_.head_dim;
    shape.value_dim = sizes_.value_dim;
    shape.scale = scale_;
    shape.window = this->window_;
    kernels::store_keys_values<S>(tp_->exec, c.rows, shape, cache.texts, c.a.qkv, cache.keys, cache.values);
    if (cache.texts.begin)
      c.t.attention->forward(this->context_call(c), device::flat(c.a.qkv), c.a.heads, c.a.lse);
    else
      kernels::cached_attention_forward<S>(tp_->exec, c.rows, shape, cache.texts, c.a.qkv, cache.keys, cache.values,
                                           c.a.heads);
  }
  /// The whole memory of c.a.qkv, as context parallelism keeps it.
  View1<S> kept_qkv(LayerCall<P> const& c) const {
    return View1<S>(c.a.qkv.data(), std::max(sizes_.qkv_elements, static_cast<std::int64_t>(c.a.qkv.size())));
  }
  static kernels::QkNormVectors<S const> norm_weights(LayerCall<P> const& c) {
    return {c.w.q_norm.value, c.w.k_norm.value};
  }
  /// Rotates queries and keys by their positions.
  void rotate(LayerCall<P> const& c, kernels::Rotation direction, View2<S> qkv) const {
    if (rope_frequencies_.extent(0) == 0) return;
    auto const& s = sizes_;
    kernels::rope<S>(tp_->exec, c.rows,
                     {s.heads + s.kv_heads, s.head_dim, pairs_, rope_factor_, query_beta_, s.heads, query_length_},
                     rope_frequencies_, direction, qkv);
  }

  double scale_ = 1.0;  ///< the scores are multiplied by it
  kernels::QkNormShape norm_;
  kernels::RopePairs pairs_ = kernels::RopePairs::halves;
  double rope_factor_ = 1.0, query_beta_ = 0.0;
  std::int64_t query_length_ = 1;
  device::Owned1<double> rope_frequencies_;  ///< [rotary_dim / 2]; empty: no rotary embedding
};

}  // namespace p3d::model
