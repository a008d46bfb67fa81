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
#include <memory>

namespace p3d::model {

/// The rotation of queries and keys by their positions, of one layer.
template <class S>
class Rotary {
public:
  Rotary(config::Config const& c, int layer) {
    if (!c.model.rotates(layer)) return;
    if (c.model.rope_pairs == config::RopePairs::neighbours) shape_.pairs = kernels::RopePairs::neighbours;
    shape_.factor = layout::rope_factor(c.model, layer);
    shape_.query_beta = c.model.rope_query_beta;
    shape_.query_length = c.model.rope_original_seq_len;
    auto frequencies = layout::rope_frequencies(c.model, layer);
    pairs_ = static_cast<std::int64_t>(frequencies.size());
    if (layout::rope_depends_on_length(c.model, layer)) {
      auto const other = layout::rope_frequencies(c.model, layer, layout::RopeLength::beyond_original);
      frequencies.insert(frequencies.end(), other.begin(), other.end());
      original_ = c.model.rope_original_seq_len;
      sample_tokens_ = c.model.seq_len;
    }
    frequencies_ = device::Owned1<double>("p3d::model::rope_frequencies", frequencies.size());
    Kokkos::deep_copy(frequencies_,
                      Kokkos::View<double const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
                          frequencies.data(), frequencies.size()));
  }
  /// The heads that lie head by head in a matrix, queries first, and the first dimension of each that rotates.
  struct Heads {
    std::int64_t queries = 0, keys = 0, width = 0, first = 0;
  };
  /// `texts` are those of rows of texts that grow.
  void rotate(device::ExecSpace const& exec, kernels::TokenRows const& rows, kernels::CachedTexts const* texts,
              Heads const& heads, kernels::Rotation direction, View2<S> x) const {
    if (frequencies_.extent(0) == 0) return;
    auto shape = shape_;
    if (original_ > 0) shape.second_set_from = second_set_from(rows, texts);
    shape.heads = heads.queries + heads.keys;
    shape.head_dim = heads.width;
    shape.query_heads = heads.queries;
    auto const end = static_cast<std::int64_t>(x.extent(1));
    View2<double const> const sets(frequencies_.data(), static_cast<std::int64_t>(frequencies_.size()) / pairs_,
                                   pairs_);
    kernels::rope<S>(exec, rows, shape, sets, direction, heads.first > 0 ? device::columns(x, heads.first, end) : x);
  }

private:
  /// The position from which rows turn by the frequencies of sequences longer than the original one. All tokens of a
  /// sequence have the same ones: in training they go by model.seq_len. A text that grows past the original length is
  /// read once more from its beginning (engine/text_batch.hpp), so that a row of its own is of a text that ends with
  /// it.
  std::int64_t second_set_from(kernels::TokenRows const& rows, kernels::CachedTexts const* texts) const {
    if (texts && !texts->begin) return original_;
    return (texts ? rows.seq_len : sample_tokens_) > original_ ? 0 : kernels::RopeShape{}.second_set_from;
  }

  kernels::RopeShape shape_;
  std::int64_t pairs_ = 0;              ///< rotary_dim / 2
  std::int64_t original_ = 0;           ///< tokens of a sequence of the first training, of longrope; 0: one set
  std::int64_t sample_tokens_ = 0;      ///< model.seq_len
  device::Owned1<double> frequencies_;  ///< [sets, pairs]; empty: no rotary embedding
};

/// All kinds of attention have in common their place in a layer, the tokens that a token sees, and what they do with
/// queries, keys and values, which are in c.a.qkv.
template <class P>
class Attention : public LinearSubLayer<P> {
public:
  using S = typename P::Storage;
  using typename LinearSubLayer<P>::Sums;
  Attention(config::Config const& c, parallel::TensorParallel& tp, int layer)
      : LinearSubLayer<P>(c, tp, layer),
        rotary_(c, layer),
        window_(c.model.window_of(layer)),
        scale_(c.model.attention_scale()),
        softcap_(c.model.attention_softcap),
        division_(layout::context_division(c)) {
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
  void apply(LayerCall<P> const& c) const final {
    if (c.cache) return attend_cached(c);
    auto const latents = travelling_latents(c);
    auto const call = context_call(c, latents.get());
    c.t.attention->exchange(call, kept_qkv(c));
    c.t.attention->forward(call, kept_qkv(c), c.a.heads, c.a.lse);
  }
  void prepare_backward(LayerCall<P> const& c) const final {
    gather_latents(c);
    auto const latents = travelling_latents(c);
    auto const call = context_call(c, latents.get());
    c.t.attention->bring_latents(call);
    if (c.discarded.attention) c.t.attention->forward(call, kept_qkv(c), c.a.heads, c.a.lse);
  }
  /// The backward of attention alone: fills c.t.dqkv, and adds the gradient of sinks. Where latents travel, gradients
  /// of keys and values become those of latents here, and of the weights between the two.
  void attend_backward(LayerCall<P> const& c) const {
    auto const latents = travelling_latents(c);
    auto const call = context_call(c, latents.get());
    c.t.attention->backward(call, kept_qkv(c), c.a.heads, c.a.lse, c.t.dheads, c.t.dqkv);
    c.t.attention->template sinks_backward<typename P::Gradient>(call, c.a.lse, c.w.sinks.grad);
  }
  using Latents = parallel::TravellingLatents<S>;
  /// True where latents travel between ranks of cp in place of keys and values. Texts are whole on every rank.
  bool latents_travel(LayerCall<P> const& c) const { return division_.latents && !c.cache; }
  /// How keys and values are made of latents, where these travel.
  virtual std::unique_ptr<Latents> travelling_latents(LayerCall<P> const& /*c*/) const { return nullptr; }
  /// Gathers the latents of all rows for backward, where they travel.
  virtual void gather_latents(LayerCall<P> const& /*c*/) const {}
  /// Attention of new tokens of texts: stores what is kept of them, then c.a.qkv -> c.a.heads.
  virtual void attend_cached(LayerCall<P> const& c) const {
    auto const& cache = *c.cache;
    auto const shape = cached_shape(c);
    kernels::store_keys_values<S>(tp_->exec, c.rows, shape, cache.texts, c.a.qkv, cache.keys, cache.values);
    if (cache.texts.begin)
      attend_new(c);
    else
      kernels::cached_attention_forward<S>(tp_->exec, c.rows, shape, cache.texts, c.a.qkv, cache.keys, cache.values,
                                           c.w.sinks.value, c.a.heads);
  }
  /// Attention of the beginning of a text, which sees nothing else.
  void attend_new(LayerCall<P> const& c) const {
    c.t.attention->forward(context_call(c), device::flat(c.a.qkv), c.a.heads, c.a.lse);
  }
  kernels::AttentionShape cached_shape(LayerCall<P> const& c) const {
    kernels::AttentionShape shape;
    shape.samples = c.rows.samples;
    shape.seq_len = c.rows.seq_len;
    shape.heads = sizes_.heads;
    shape.kv_heads = sizes_.kv_heads;
    shape.head_dim = sizes_.head_dim;
    shape.value_dim = sizes_.value_dim;
    shape.scale = scale_;
    shape.softcap = softcap_;
    shape.window = window_;
    return shape;
  }
  using LinearSubLayer<P>::tp_;
  using LinearSubLayer<P>::sizes_;
  Rotary<S> rotary_;

private:
  typename parallel::ContextAttention<S>::Call context_call(LayerCall<P> const& c,
                                                            Latents const* latents = nullptr) const {
    typename parallel::ContextAttention<S>::Call call;
    call.division.seq_len = c.rows.seq_len;
    if (c.rows.tokens.size() > 0) call.division = division_.of_length(c.rows.sample_tokens);
    call.first_sample = c.rows.first_sample;
    call.samples = c.rows.samples;
    call.window = window_;
    call.documents = c.rows.documents;
    call.sinks = c.w.sinks.value;
    call.latents = latents;
    if (trains(c.kind)) call.dropout = probability_dropout_;
    return call;
  }
  /// The whole memory of c.a.qkv, as context parallelism keeps it.
  View1<S> kept_qkv(LayerCall<P> const& c) const {
    return View1<S>(c.a.qkv.data(), std::max(sizes_.qkv_elements, static_cast<std::int64_t>(c.a.qkv.size())));
  }

  std::int64_t window_;
  double scale_;    ///< the scores are multiplied by it
  double softcap_;  ///< the cap of scores; 0: none
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
    norm_ = {.heads = sizes_.heads,
             .kv_heads = sizes_.kv_heads,
             .head_dim = sizes_.head_dim,
             .full = c.model.qk_norm == config::QkNorm::full,
             .ranks = tp.size(),
             .eps = c.model.norm_eps,
             .offset = static_cast<double>(c.model.norm_offset)};
  }

private:
  using Attention<P>::tp_;
  using Attention<P>::sizes_;
  Parts parts(LayerCall<P> const& c) const override {
    auto& a = c.a;
    auto& t = c.t;
    return {c.w.qkv, c.w.attn_out, c.w.qkv_bias, a.qkv, a.heads, t.dqkv, t.dheads, a.qkv, t.dqkv};
  }
  void project_rows(LayerCall<P> const& c, parallel::WholeRows<S>& normed) const override {
    parallel::column_linear_forward<S>(*tp_, normed, c.w.qkv.value, c.w.qkv_bias.value, c.a.qkv);
    if (sizes_.qk_norms > 0)
      parallel::qk_norm_forward<S>(*tp_, norm_, norm_weights(c), c.t.qk_sums, c.a.qkv, c.a.qk, c.a.qk_scale);
    rotate(c, kernels::Rotation::forward, c.a.qkv);
  }
  void apply_backward(LayerCall<P> const& c, Sums& sums) const override {
    this->attend_backward(c);
    rotate(c, kernels::Rotation::backward, c.t.dqkv);
    if (sizes_.qk_norms > 0)
      parallel::qk_norm_backward<S, G>(*tp_, norm_, norm_weights(c), c.t.qk_sums, c.t.dqkv, c.a.qk, c.a.qk_scale,
                                       {c.w.q_norm.grad, c.w.k_norm.grad}, sums);
  }
  void rotate(LayerCall<P> const& c, kernels::Rotation direction, View2<S> qkv) const {
    this->rotary_.rotate(tp_->exec, c.rows, c.cache ? &c.cache->texts : nullptr,
                         {sizes_.heads, sizes_.kv_heads, sizes_.head_dim, 0}, direction, qkv);
  }
  static kernels::QkNormVectors<S const> norm_weights(LayerCall<P> const& c) {
    return {c.w.q_norm.value, c.w.k_norm.value};
  }

  kernels::QkNormShape norm_;
};

}  // namespace p3d::model
