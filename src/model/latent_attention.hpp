// SPDX-License-Identifier: Apache-2.0
#pragma once
// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). With x the sub-layer's input:
//
//   [cq | c | kr] = latent_down x        one linear for all latents; cq and c pass an RMS norm each
//   q = q_up cq                          of each head; or q = q_up x where queries have no latent
//   [k | v] = kv_up c                    of each head
//   keys are [k | kr] and rotate behind k, as queries do
//
// Over tp heads are divided. Latents are whole on every rank, and so are their gradients once they are summed over tp:
// that sum and its all-gather under sequence parallelism are of latents, which are shorter than x. Where queries come
// from x, their linear gathers and sums x besides.
//
// Over cp latents travel where they are fewer bytes than the keys and values of a rank's heads (parallel/context.hpp).
// Then attention makes keys and values, of this rank's tokens too, and all of kv_up's weight gradient comes with the
// input part of a split backward: keys and values of other ranks' tokens are not kept until the weight part.

#include "attention.hpp"

#include <p3d/kernels/latent_heads.hpp>
#include <p3d/kernels/qk_norm.hpp>

namespace p3d::model {

template <class P>
class LatentAttention final : public Attention<P> {
public:
  using S = typename P::Storage;
  using typename LinearSubLayer<P>::Parts;
  using typename SubLayer<P>::G;
  using typename SubLayer<P>::Sums;
  LatentAttention(config::Config const& c, parallel::TensorParallel& tp, int layer) : Attention<P>(c, tp, layer) {
    auto const& a = c.model.mla;
    heads_ = {sizes_.heads, a.qk_nope_head_dim, a.qk_rope_head_dim, a.v_head_dim};
    // Two norms of unequal width are as those of all queries and of all keys; a single one is as that of one head.
    bool const queries = a.q_lora_rank > 0;
    norm_ = {.heads = a.q_lora_rank,
             .kv_heads = queries ? a.kv_lora_rank : 1,
             .head_dim = queries ? 1 : a.kv_lora_rank,
             .full = queries,
             .eps = a.norm_eps,
             .offset = static_cast<double>(c.model.norm_offset)};
  }
  bool gathers_input() const override { return !queries_have_latent(); }

private:
  using Attention<P>::tp_;
  using Attention<P>::sizes_;
  using Attention<P>::stream_;
  Parts parts(LayerCall<P> const& c) const override {
    auto& a = c.a;
    auto& t = c.t;
    return {c.w.latent_down, c.w.attn_out, c.w.qkv_bias, a.qkv, a.heads, t.dqkv, t.dheads, a.qkv, t.dqkv};
  }
  bool queries_have_latent() const { return sizes_.mla.q_rank > 0; }

  void project(LayerCall<P> const& c) const override {
    auto const input = this->ends(c).input;
    parallel::WholeRows<S> all_input;
    using parallel::Gather;
    if (!queries_have_latent())
      all_input = parallel::start_gather_rows<S>(*tp_, input, c.t.gathered, Gather::in_chunks);
    parallel::local_linear_forward<S>(*tp_, input, c.w.latent_down.value, c.a.latent);
    kernels::qk_norm_forward<S>(tp_->exec, norm_, norm_weights(c), {}, c.a.latent, c.a.raw_latent, c.a.latent_scale);
    auto arriving = parallel::start_gather_rows<S>(*tp_, c.a.latent, c.t.gathered_latent,
                                                   queries_have_latent() ? Gather::in_chunks : Gather::whole);
    auto const latent = arriving.view;
    if (queries_have_latent()) all_input = {of_queries<S const>(latent), std::move(arriving.arrival)};
    parallel::local_linear_forward<S>(*tp_, all_input, c.w.q_up.value, queries(c.a.qkv));
    arriving.wait();
    if (absorbs(c) || this->latents_travel(c)) return rotate(c, kernels::Rotation::forward, 0, c.a.qkv);
    parallel::local_linear_forward<S>(*tp_, of_keys_values<S const>(latent), c.w.kv_up.value, c.t.kv_both);
    kernels::join_latent_heads<S>(tp_->exec, heads_, c.t.kv_both, shared_keys<S const>(latent), keys(c.a.qkv),
                                  values(c.a.qkv));
    rotate(c, kernels::Rotation::forward, sizes_.heads, c.a.qkv);
  }
  void apply_backward(LayerCall<P> const& c, Sums& /*sums*/) const override {
    this->attend_backward(c);
    if (this->latents_travel(c)) rotate_shared(c, kernels::Rotation::backward, shared_keys<S>(c.t.dlatent));
    rotate(c, kernels::Rotation::backward, this->latents_travel(c) ? 0 : sizes_.heads, c.t.dqkv);
  }
  void project_backward(LayerCall<P> const& c, bool weights, parallel::WholeRows<S> normed, Sums& sums) const override {
    auto const ends = this->ends(c);
    auto const dq = queries(c.t.dqkv);
    if (queries_have_latent())
      parallel::local_linear_backward_input<S>(*tp_, dq, c.w.q_up.value, of_queries<S>(c.t.dlatent));
    parallel::WholeRows<S> latent;
    if (this->latents_travel(c)) {
      latent.view = gathered_latents(c);
    } else {
      split_heads(c, c.t.dqkv);
      parallel::local_linear_backward_input<S>(*tp_, c.t.kv_both, c.w.kv_up.value, of_keys_values<S>(c.t.dlatent));
      if (weights) latent = parallel::start_gather_rows<S>(*tp_, c.a.latent, c.t.gathered_latent);
    }
    auto sum = parallel::start_sum_rows<S>(*tp_, c.t.dlatent);
    if (weights) up_backward_weight(c, dq, latent.wait());
    sum.wait();
    auto const own = own_rows(*tp_, c.t.dlatent);
    kernels::qk_norm_backward<S, G>(tp_->exec, norm_, norm_weights(c), {}, own, c.a.raw_latent, c.a.latent_scale,
                                    {c.w.q_latent.grad, c.w.kv_latent.grad}, sums);
    if (normed.view.data() == nullptr) normed = stream_.input(c, ends, false);
    auto store = kernels::Store::overwrite;
    if (!queries_have_latent()) {
      auto from_queries = parallel::column_linear_backward_input<S>(*tp_, dq, c.w.q_up.value, c.t.dnorm);
      if (weights) parallel::linear_backward_weight<S, G>(tp_->exec, dq, normed.wait(), c.w.q_up.grad);
      from_queries.wait();
      store = kernels::Store::add;
    }
    parallel::local_linear_backward_input<S>(*tp_, own, c.w.latent_down.value, own_rows(*tp_, c.t.dnorm), store);
    if (weights)
      parallel::linear_backward_weight<S, G>(tp_->exec, own, ends.input, c.w.latent_down.grad);
    else
      Kokkos::deep_copy(tp_->exec, c.a.raw_latent, own);  // the weight part reads it
  }
  void project_backward_weight(LayerCall<P> const& c, RowsAhead<S>& inputs) const override {
    auto const dq = queries(c.a.qkv);
    if (queries_have_latent() || !this->latents_travel(c)) {
      auto latent = parallel::start_gather_rows<S>(*tp_, c.a.latent, c.t.gathered_latent);
      if (!this->latents_travel(c)) split_heads(c, c.a.qkv);
      up_backward_weight(c, dq, latent.wait());
    }
    if (!queries_have_latent()) parallel::linear_backward_weight<S, G>(tp_->exec, dq, inputs.wait(), c.w.q_up.grad);
    parallel::linear_backward_weight<S, G>(tp_->exec, c.a.raw_latent, inputs.own(), c.w.latent_down.grad);
  }

  /// The gradients of the matrices that read latents, of which `latent` has all rows. c.t.kv_both holds its gradient;
  /// where latents travel, attention has added that of kv_up.
  void up_backward_weight(LayerCall<P> const& c, View2<S const> dq, View2<S const> latent) const {
    if (queries_have_latent())
      parallel::linear_backward_weight<S, G>(tp_->exec, dq, of_queries<S const>(latent), c.w.q_up.grad);
    if (!this->latents_travel(c))
      parallel::linear_backward_weight<S, G>(tp_->exec, c.t.kv_both, of_keys_values<S const>(latent), c.w.kv_up.grad);
  }
  /// Keys and values of some heads, made of latents of the tokens of any rank of cp. A row of these has the latent c
  /// and behind it the part of keys that heads share, rotated: so its gradients add up before they are rotated back.
  class Travelling final : public parallel::TravellingLatents<S> {
  public:
    using typename parallel::TravellingLatents<S>::Heads;
    Travelling(LatentAttention const& attention, LayerCall<P> const& c) : of_(attention), c_(c) {}
    void own(View2<S> rows) const override {
      auto const latent = device::columns(of_.gathered_latents(c_), of_.sizes_.mla.q_rank, of_.sizes_.mla.latent());
      kernels::copy_rows<S, S>(of_.tp_->exec, static_cast<std::int64_t>(rows.extent(0)), of_.width(),
                               kernels::heads_of(latent), kernels::heads_of(rows));
      of_.rotate_shared(c_, kernels::Rotation::forward, shared(rows));
    }
    void expand(Heads heads, View2<S const> latents, View2<S> keys, View2<S> values) const override {
      auto const kv = both(heads, latents.extent(0));
      parallel::local_linear_forward<S>(*of_.tp_, compressed(latents), up<S const>(heads, c_.w.kv_up.value), kv);
      kernels::join_latent_heads<S>(of_.tp_->exec, shape(heads), kv, shared(latents), keys, values);
    }
    void expand_backward(Heads heads, View2<S const> latents, View2<S const> dkeys, View2<S const> dvalues,
                         View2<kernels::Acc<S>> dlatents) const override {
      using A = kernels::Acc<S>;
      auto const kv = both(heads, latents.extent(0));
      kernels::split_latent_heads<S, A>(of_.tp_->exec, shape(heads), dkeys, dvalues, kv, shared(dlatents));
      parallel::local_linear_backward_input<S, A>(*of_.tp_, kv, up<S const>(heads, c_.w.kv_up.value),
                                                  compressed(dlatents));
      parallel::linear_backward_weight<S, G>(of_.tp_->exec, kv, compressed(latents), up<G>(heads, c_.w.kv_up.grad));
    }
    View2<S> gradient() const override {
      return device::columns(c_.t.dlatent, of_.sizes_.mla.q_rank, of_.sizes_.mla.latent());
    }

  private:
    template <class T>
    View2<T> compressed(View2<T> rows) const {
      return device::columns(rows, 0, of_.sizes_.mla.kv_rank);
    }
    template <class T>
    View2<T> shared(View2<T> rows) const {
      return device::columns(rows, of_.sizes_.mla.kv_rank, of_.width());
    }
    kernels::LatentHeadShape shape(Heads heads) const {
      auto out = of_.heads_;
      out.heads = heads.number;
      return out;
    }
    /// Rows of kv_up that belong to the heads.
    template <class T>
    View2<T> up(Heads heads, View2<T> all) const {
      auto const each = of_.heads_.both();
      return device::rows(all, heads.first * each, (heads.first + heads.number) * each);
    }
    /// The memory of c.t.kv_both for the rows of any place: it is for the most rows of all heads.
    View2<S> both(Heads heads, std::size_t rows) const {
      return View2<S>(c_.t.kv_both.data(), rows, static_cast<std::size_t>(heads.number * of_.heads_.both()));
    }

    LatentAttention const& of_;
    LayerCall<P> const& c_;
  };
  std::unique_ptr<parallel::TravellingLatents<S>> travelling_latents(LayerCall<P> const& c) const override {
    if (!this->latents_travel(c)) return nullptr;
    return std::make_unique<Travelling>(*this, c);
  }
  void gather_latents(LayerCall<P> const& c) const override {
    if (this->latents_travel(c)) parallel::start_gather_rows<S>(*tp_, c.a.latent, c.t.gathered_latent).wait();
  }
  /// The latents of all rows, once they are gathered.
  View2<S const> gathered_latents(LayerCall<P> const& c) const {
    return tp_->sequence ? c.t.gathered_latent : c.a.latent;
  }
  /// Columns of what travels of a token.
  std::int64_t width() const { return sizes_.mla.kv_rank + sizes_.mla.rope_dim; }
  /// Gradients of keys and values, in `dqkv`, to those of c.t.kv_both and of the part of keys that heads share.
  void split_heads(LayerCall<P> const& c, View2<S> dqkv) const {
    kernels::split_latent_heads<S>(tp_->exec, heads_, keys(dqkv), values(dqkv), c.t.kv_both,
                                   shared_keys<S>(c.t.dlatent));
  }
  /// Rotates all queries of qkv, and the keys of so many heads.
  void rotate(LayerCall<P> const& c, kernels::Rotation direction, std::int64_t keys, View2<S> qkv) const {
    this->rotary_.rotate(tp_->exec, c.rows, c.cache ? &c.cache->texts : nullptr,
                         {sizes_.heads, keys, sizes_.head_dim, heads_.nope}, direction, qkv);
  }

  /// Rotates the part of keys that heads share.
  void rotate_shared(LayerCall<P> const& c, kernels::Rotation direction, View2<S> shared) const {
    this->rotary_.rotate(tp_->exec, c.rows, c.cache ? &c.cache->texts : nullptr, {0, 1, sizes_.mla.rope_dim, 0},
                         direction, shared);
  }

  /// True where queries meet the latents of a cache.
  static bool absorbs(LayerCall<P> const& c) { return c.cache && !c.cache->texts.begin; }
  /// A cache keeps of a token its latent of keys and values, and behind it the part of keys that heads share, rotated.
  /// A query q without positions meets the latent c as (kv_up^T q) c, and kv_up multiplies the weighted sum of latents
  /// (arXiv 2405.04434, section 2.1.2): no key or value of an earlier token is made again.
  void attend_cached(LayerCall<P> const& c) const override {
    auto const& cache = *c.cache;
    auto const& mla = sizes_.mla;
    rotate_shared(c, kernels::Rotation::forward, shared_keys<S>(c.a.latent));
    auto const kept = device::columns(c.a.latent, mla.q_rank, mla.latent());
    kernels::store_in_cache<S>(tp_->exec, c.rows, cache.texts, 1, kept, cache.keys);
    if (!absorbs(c)) return this->attend_new(c);
    auto const rank = mla.kv_rank, width = this->width();
    auto const q = queries(c.a.qkv);
    for (std::int64_t h = 0; h < sizes_.heads; ++h) {
      auto const nope = device::columns(q, h * heads_.key(), h * heads_.key() + heads_.nope);
      parallel::local_linear_backward_input<S>(*tp_, nope, up_rows(c, h, 0, heads_.nope),
                                               device::columns(cache.queries, h * width, h * width + rank));
    }
    kernels::place_rotating_parts<S>(tp_->exec, heads_, rank, q, cache.queries);
    auto shape = this->cached_shape(c);
    shape.kv_heads = 1;
    shape.head_dim = width;
    shape.value_dim = rank;
    auto texts = cache.texts;
    texts.value_stride = width;  // the values are the latents in front of the keys' rotated parts
    kernels::cached_attention_forward<S>(tp_->exec, c.rows, shape, texts, cache.queries, cache.keys, cache.keys,
                                         c.w.sinks.value, cache.outputs);
    for (std::int64_t h = 0; h < sizes_.heads; ++h)
      parallel::local_linear_forward<S>(*tp_, device::columns(cache.outputs, h * rank, (h + 1) * rank),
                                        up_rows(c, h, heads_.nope, heads_.both()),
                                        device::columns(c.a.heads, h * heads_.value, (h + 1) * heads_.value));
  }
  /// Rows [begin, end) of those of kv_up that belong to a head.
  View2<S const> up_rows(LayerCall<P> const& c, std::int64_t head, std::int64_t begin, std::int64_t end) const {
    auto const first = head * heads_.both();
    return device::rows<S const>(c.w.kv_up.value, first + begin, first + end);
  }
  static kernels::QkNormVectors<S const> norm_weights(LayerCall<P> const& c) {
    return {c.w.q_latent.value, c.w.kv_latent.value};
  }

  // Columns of qkv, and of latents.
  View2<S> queries(View2<S> qkv) const { return device::columns(qkv, 0, sizes_.heads * sizes_.head_dim); }
  View2<S> keys(View2<S> qkv) const {
    auto const n = sizes_.heads * sizes_.head_dim;
    return device::columns(qkv, n, 2 * n);
  }
  View2<S> values(View2<S> qkv) const {
    auto const n = sizes_.heads * sizes_.head_dim;
    return device::columns(qkv, 2 * n, 2 * n + sizes_.heads * heads_.value);
  }
  template <class T>
  View2<T> of_queries(View2<T> latent) const {
    return device::columns(latent, 0, sizes_.mla.q_rank);
  }
  template <class T>
  View2<T> of_keys_values(View2<T> latent) const {
    return device::columns(latent, sizes_.mla.q_rank, sizes_.mla.normed());
  }
  template <class T>
  View2<T> shared_keys(View2<T> latent) const {
    return device::columns(latent, sizes_.mla.normed(), sizes_.mla.latent());
  }

  kernels::LatentHeadShape heads_;
  kernels::QkNormShape norm_;
};

}  // namespace p3d::model
