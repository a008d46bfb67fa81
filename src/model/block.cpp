// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/block.hpp>

#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/expert_rows.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/kernels/rope.hpp>
#include <p3d/layout/rope.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace p3d::model {

using kernels::Rotation;
using layout::LayerRecompute;
using kernels::TokenRows;
using kernels::Store;

template <class P>
NormLayer<P>::NormLayer(config::Config const& c)
    : layernorm_(c.model.norm == config::Norm::layernorm), eps_(c.model.norm_eps) {}

template <class P>
void NormLayer<P>::forward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> x,
                           NormActivations<P> const& out) const {
  if (layernorm_) {
    kernels::layernorm_forward<S>(exec, x, w.weight.value, w.bias.value, eps_, out.y, out.mean, out.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, x, w.weight.value, eps_, out.y, out.scale);
  }
}

template <class P>
void NormLayer<P>::forward(ExecSpace const& exec, NormWeights<P> const& w, kernels::ResidualSum<S> const& sum,
                           View2<S> x, NormActivations<P> const& out) const {
  if (layernorm_) {
    kernels::layernorm_forward<S>(exec, sum, x, w.weight.value, w.bias.value, eps_, out.y, out.mean, out.scale);
  } else {
    kernels::rmsnorm_forward<S>(exec, sum, x, w.weight.value, eps_, out.y, out.scale);
  }
}

template <class P>
void NormLayer<P>::backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                            NormActivations<P> const& saved, Store store, View2<S> dx) const {
  kernels::ColumnSums<S, G> sums;
  backward(exec, w, dy, x, saved, store, dx, {}, sums);
  sums.finish(exec);
}

template <class P>
void NormLayer<P>::backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                            NormActivations<P> const& saved, Store store, View2<S> dx,
                            kernels::NormBranches<S, G> const& branches, kernels::ColumnSums<S, G>& sums) const {
  if (layernorm_) {
    kernels::layernorm_backward<S, G>(exec, dy, x, w.weight.value, saved.mean, saved.scale, store, dx, w.weight.grad,
                                      w.bias.grad, branches, sums);
  } else {
    kernels::rmsnorm_backward<S, G>(exec, dy, x, w.weight.value, saved.scale, store, dx, w.weight.grad, branches, sums);
  }
}

template <class P>
TransformerBlock<P>::TransformerBlock(config::Config const& c, parallel::TensorParallel& tp, int layer)
    : tp_(&tp),
      sizes_(layout::layer_sizes(layout::block_sizes(c), c, layer)),
      window_(c.model.window_of(layer)),
      division_(layout::context_division(c)),
      norm_(c) {
  if (c.model.position == config::Position::rope) {
    auto const frequencies = layout::rope_frequencies(c.model);
    rope_frequencies_ = device::Owned1<double>("p3d::model::rope_frequencies", frequencies.size());
    Kokkos::deep_copy(rope_frequencies_,
                      Kokkos::View<double const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
                          frequencies.data(), frequencies.size()));
  }
  auto const site = [&](char const* rest) {
    return kernels::make_dropout(c.model.dropout, c.run.seed, fmt::format("dropout.layers.{}.{}", layer, rest));
  };
  if (sizes_.moe.on()) experts_.emplace(c, layer);
  probability_dropout_ = site("attn.probability");
  probability_dropout_.sample_tokens = c.model.seq_len;
  attn_dropout_ = site("attn.out");
  mlp_dropout_ = site("mlp.out");
}

template <class P>
typename parallel::ContextAttention<typename P::Storage>::Call TransformerBlock<P>::attention_call(
    TokenRows const& rows, bool training) const {
  // In three steps: nvcc 13.0 crashes on a designated initializer inside a conditional.
  layout::ContextDivision division;
  division.seq_len = rows.seq_len;
  if (rows.tokens.size() > 0) division = division_.of_length(rows.sample_tokens);
  return {.division = division,
          .first_sample = rows.first_sample,
          .samples = rows.samples,
          .window = window_,
          .documents = rows.documents,
          .dropout = training ? probability_dropout_ : kernels::Dropout{}};
}

template <class P>
View1<typename P::Storage> TransformerBlock<P>::kept_qkv(BlockActivations<P> const& a) const {
  return View1<S>(a.qkv.data(), std::max(sizes_.qkv_elements, static_cast<std::int64_t>(a.qkv.size())));
}

template <class P>
void TransformerBlock<P>::attend_cached(TokenRows const& rows, BlockActivations<P> const& a, BlockScratch<P> const& t,
                                        KeyValueCache<P> const& cache) {
  kernels::AttentionShape shape;
  shape.samples = rows.samples;
  shape.seq_len = rows.seq_len;
  shape.heads = sizes_.heads;
  shape.kv_heads = sizes_.kv_heads;
  shape.head_dim = sizes_.head_dim;
  shape.scale = 1.0 / std::sqrt(static_cast<double>(sizes_.head_dim));
  shape.window = window_;
  kernels::store_keys_values<S>(tp_->exec, rows, shape, cache.texts, a.qkv, cache.keys, cache.values);
  if (cache.texts.begin)
    t.attention->forward(attention_call(rows, false), device::flat(a.qkv), a.heads, a.lse);
  else
    kernels::cached_attention_forward<S>(tp_->exec, rows, shape, cache.texts, a.qkv, cache.keys, cache.values, a.heads);
}

template <class P>
void TransformerBlock<P>::rotate(TokenRows const& rows, Rotation direction, View2<S> qkv) const {
  if (rope_frequencies_.extent(0) == 0) return;
  kernels::rope<S>(tp_->exec, rows, sizes_.heads + sizes_.kv_heads, sizes_.head_dim, rope_frequencies_, direction, qkv);
}

template <class P>
void TransformerBlock<P>::activate(BlockWeights<P> const& w, BlockActivations<P> const& a) {
  if (sizes_.gated) {
    kernels::swiglu_forward<S>(tp_->exec, as_up(a.up), as_act(a.act), w.up_bias.value);
  } else {
    kernels::gelu_forward<S>(tp_->exec, as_up(a.up), as_act(a.act), w.up_bias.value);
  }
}

template <class P>
void TransformerBlock<P>::forward_first(BlockWeights<P> const& w, TokenRows const& rows, bool training,
                                        View2<S const> x, BlockActivations<P> const& a, BlockScratch<P> const& t,
                                        bool mid_is_there, KeyValueCache<P> const* cache) {
  auto& exec = tp_->exec;
  norm_.forward(exec, w.norm1, x, a.norm1());
  auto const normed = parallel::start_gather_rows<S>(*tp_, a.norm1_y, t.gathered).wait();
  parallel::column_linear_forward<S>(*tp_, normed, w.qkv.value, w.qkv_bias.value, a.qkv);
  rotate(rows, Rotation::forward, a.qkv);
  if (cache) {
    attend_cached(rows, a, t, *cache);
  } else {
    auto const call = attention_call(rows, training);
    t.attention->exchange(call, kept_qkv(a));
    t.attention->forward(call, kept_qkv(a), a.heads, a.lse);
  }
  if (mid_is_there) return norm_.forward(exec, w.norm2, a.mid, a.norm2());
  parallel::row_linear_forward<S>(*tp_, a.heads, w.attn_out.value, t.branch);
  kernels::ResidualSum<S> const sum{.rows = own_rows(*tp_, rows),
                                    .x = x,
                                    .branch = own_rows(*tp_, t.branch),
                                    .bias = w.attn_out_bias.value,
                                    .dropout = training ? attn_dropout_ : kernels::Dropout{}};
  norm_.forward(exec, w.norm2, sum, a.mid, a.norm2());
}

template <class P>
void TransformerBlock<P>::forward_up(BlockWeights<P> const& w, BlockActivations<P> const& a, BlockScratch<P> const& t) {
  if (!has_mlp()) return;
  auto const normed = parallel::start_gather_rows<S>(*tp_, a.norm2_y, t.gathered).wait();
  parallel::column_linear_forward<S>(*tp_, normed, w.up.value, View1<S const>(), as_up(a.up));
  activate(w, a);
  if (sizes_.moe.gates_shared) SharedGate<P>::forward(tp_->exec, w.moe, normed, a.moe);
}

template <class P>
void TransformerBlock<P>::forward_down(BlockWeights<P> const& w, BlockActivations<P> const& a,
                                       BlockScratch<P> const& t) {
  if (!has_mlp()) return;
  View2<S const> act = as_act(a.act);
  if (sizes_.moe.gates_shared) {
    Kokkos::deep_copy(tp_->exec, as_act(t.dact), act);
    kernels::gate_rows<S>(tp_->exec, a.moe.shared_gates, as_act(t.dact));
    act = as_act(t.dact);
  }
  parallel::row_linear_forward<S>(*tp_, act, w.down.value, t.branch);
}

template <class P>
void TransformerBlock<P>::forward(BlockWeights<P> const& w, TokenRows const& rows, RoutePass kind, View2<S const> x,
                                  BlockActivations<P> const& a, BlockScratch<P> const& t, View2<S> y) {
  forward_first(w, rows, trains(kind), x, a, t, false);
  forward_second(w, rows, kind, a, t, y);
}

template <class P>
void TransformerBlock<P>::forward_cached(BlockWeights<P> const& w, TokenRows const& rows, KeyValueCache<P> const& cache,
                                         View2<S const> x, BlockActivations<P> const& a, BlockScratch<P> const& t,
                                         View2<S> y) {
  forward_first(w, rows, false, x, a, t, false, &cache);
  forward_second(w, rows, RoutePass::decoding, a, t, y);
}

template <class P>
void TransformerBlock<P>::forward_second(BlockWeights<P> const& w, TokenRows const& rows, RoutePass kind,
                                         BlockActivations<P> const& a, BlockScratch<P> const& t, View2<S> y) {
  auto const every_token = [&] {
    forward_up(w, a, t);
    forward_down(w, a, t);
  };
  if (experts_)
    experts_->forward(tp_->exec, w.moe, own_rows(*tp_, rows), kind, a.norm2_y, a.moe, t.moe,
                      has_mlp() ? Store::add : Store::overwrite, own_rows(*tp_, t.branch), every_token);
  else
    every_token();
  auto const dropout = trains(kind) ? mlp_dropout_ : kernels::Dropout{};
  kernels::residual_forward<S>(tp_->exec, own_rows(*tp_, rows), a.mid, own_rows(*tp_, t.branch), w.down_bias.value,
                               dropout, y);
}

template <class P>
void TransformerBlock<P>::remake(BlockWeights<P> const& w, TokenRows const& rows, View2<S const> x,
                                 BlockActivations<P> const& a, BlockScratch<P> const& t, bool mid_is_there) {
  forward_first(w, rows, true, x, a, t, mid_is_there);
  auto const every_token = [&] { forward_up(w, a, t); };
  if (experts_)
    experts_->remake(tp_->exec, w.moe, own_rows(*tp_, rows), a.norm2_y, a.moe, t.moe, every_token);
  else
    every_token();
}

template <class P>
void TransformerBlock<P>::backward(BlockWeights<P> const& w, TokenRows const& rows, View2<S const> x,
                                   LayerRecompute const& discarded, BlockActivations<P> const& saved,
                                   BlockScratch<P> const& scratch, View2<S> d) {
  kernels::ColumnSums<S, G> sums;
  auto const branch = backward_mlp(w, rows, discarded, saved, scratch, {}, {}, sums, d);
  backward_attention(w, rows, x, discarded, saved, scratch, branch, true, sums, d);
  sums.finish(tp_->exec);
}

template <class P>
void TransformerBlock<P>::backward_input(BlockWeights<P> const& w, TokenRows const& rows, View2<S const> x, View2<S> y,
                                         LayerRecompute const& discarded, BlockActivations<P>& saved,
                                         BlockScratch<P>& scratch, View2<S> d) {
  kernels::ColumnSums<S, G> sums;
  auto const branch = backward_mlp(w, rows, discarded, saved, scratch, y, saved.mid, sums, d);
  scratch.dup = as_up(scratch.dup);
  saved.up = as_up(saved.up);
  std::swap(saved.up, scratch.dup);
  backward_attention(w, rows, x, discarded, saved, scratch, branch, false, sums, d);
  sums.finish(tp_->exec);
  std::swap(saved.qkv, scratch.dqkv);
}

// What is gathered next travels while a GEMM reads what came before.
template <class P>
void TransformerBlock<P>::backward_weight(BlockWeights<P> const& w, View2<S const> y, BlockActivations<P> const& a,
                                          BlockScratch<P> const& t) {
  auto& exec = tp_->exec;
  kernels::ColumnSums<S, G> sums;
  parallel::WholeRows<S> dbranch, normed;
  if (has_mlp()) {
    dbranch = parallel::start_gather_rows<S>(*tp_, y, t.branch);
    normed = parallel::start_gather_rows<S>(*tp_, a.norm2_y, t.gathered);
    sums.add(y, w.down_bias.grad);
    sums.add(as_up(a.up), w.up_bias.grad);
    parallel::linear_backward_weight<S, G>(exec, dbranch.wait(), as_act(a.act), w.down.grad);
  }
  dbranch = parallel::start_gather_rows<S>(*tp_, a.mid, t.branch);
  if (has_mlp()) parallel::linear_backward_weight<S, G>(exec, as_up(a.up), normed.wait(), w.up.grad);
  normed = parallel::start_gather_rows<S>(*tp_, a.norm1_y, t.gathered);
  sums.add(a.mid, w.attn_out_bias.grad);
  sums.add(a.qkv, w.qkv_bias.grad);
  sums.finish(exec);
  parallel::linear_backward_weight<S, G>(exec, dbranch.wait(), a.heads, w.attn_out.grad);
  parallel::linear_backward_weight<S, G>(exec, a.qkv, normed.wait(), w.qkv.grad);
}

template <class P>
View2<typename P::Storage> TransformerBlock<P>::branch_place(kernels::Dropout const& dropout, View2<S> keep,
                                                             View2<S> scratch) const {
  if (keep.data() != nullptr) return keep;
  return dropout.active() ? own_rows(*tp_, scratch) : View2<S>();
}

template <class P>
View2<typename P::Storage> TransformerBlock<P>::branch_gradient(TokenRows const& rows, View2<S> d,
                                                                kernels::Dropout const& dropout, View2<S> keep,
                                                                View2<S> scratch) const {
  auto const out = branch_place(dropout, keep, scratch);
  if (out.data() == nullptr) return d;
  kernels::residual_backward<S>(tp_->exec, own_rows(*tp_, rows), d, dropout, out);
  return out;
}

template <class P>
View1<typename P::Gradient> TransformerBlock<P>::bias_to_sum(View2<S const> branch, View1<G> grad,
                                                             BlockScratch<P> const& t) const {
  bool const stays = t.dnorm.data() != t.branch.data() || branch.data() != own_rows(*tp_, t.branch).data();
  if (stays) return grad;
  kernels::bias_backward<S, G>(tp_->exec, branch, grad);
  return {};
}

template <class P>
parallel::WholeRows<typename P::Storage> TransformerBlock<P>::norm_output(NormWeights<P> const& w, bool discarded,
                                                                          View2<S const> x,
                                                                          NormActivations<P> const& norm, bool gather,
                                                                          BlockScratch<P> const& t) const {
  if (discarded) norm_.forward(tp_->exec, w, x, norm);
  if (!gather) return {norm.y, {}};
  return parallel::start_gather_rows<S>(*tp_, norm.y, t.gathered);
}

template <class P>
View2<typename P::Storage> TransformerBlock<P>::backward_mlp(BlockWeights<P> const& w, TokenRows const& rows,
                                                             LayerRecompute const& discarded,
                                                             BlockActivations<P> const& a, BlockScratch<P> const& t,
                                                             View2<S> keep, View2<S> keep_next,
                                                             kernels::ColumnSums<S, G>& sums, View2<S> d) {
  auto& exec = tp_->exec;
  bool const weights = keep.data() == nullptr, gathers = tp_->sequence && weights;
  auto const norm = [&] { return norm_output(w.norm2, discarded.norm, a.mid, a.norm2(), gathers, t); };
  auto const own = branch_gradient(rows, d, mlp_dropout_, keep, t.branch);
  auto const next = branch_place(attn_dropout_, keep_next, t.branch);
  auto const finish = [&](View2<S const> dnorm, View1<G> bias) {
    norm_.backward(exec, w.norm2, dnorm, a.mid, a.norm2(), Store::add, d,
                   {own, bias, own_rows(*tp_, rows), attn_dropout_, next}, sums);
    return next.data() != nullptr ? next : d;
  };
  if (experts_) {
    if (discarded.norm) norm_.forward(exec, w.norm2, a.mid, a.norm2());
    experts_->backward(exec, w.moe, own_rows(*tp_, rows), a.norm2_y, a.moe, t.moe, own, t.moe.dx);
    if (!has_mlp()) return finish(t.moe.dx, {});
  }
  auto const up = as_up(a.up), act = as_act(a.act), dact = as_act(t.dact), dup = as_up(t.dup);
  auto gathering = parallel::start_gather_rows<S>(*tp_, own, t.branch);
  parallel::WholeRows<S> normed;
  if (gathers) normed = norm();
  auto const down_bias = weights ? bias_to_sum(own, w.down_bias.grad, t) : View1<G>();
  auto const dbranch = gathering.wait();
  parallel::row_linear_backward_input<S>(*tp_, dbranch, w.down.value, dact);
  if (discarded.activation) activate(w, a);
  if (sizes_.moe.gates_shared) SharedGate<P>::backward(*tp_, w.moe, a.norm2_y, a.moe, t.moe, act, dact, t.moe.dx);
  if (weights) parallel::linear_backward_weight<S, G>(exec, dbranch, act, w.down.grad);
  if (sizes_.gated) {
    kernels::swiglu_backward<S>(exec, up, dact, dup, w.up_bias.value);
  } else {
    kernels::gelu_backward<S>(exec, up, dact, dup, w.up_bias.value);
  }
  auto sum = parallel::column_linear_backward_input<S>(*tp_, dup, w.up.value, t.dnorm);
  if (!gathers) normed = norm();
  if (weights) {
    parallel::linear_backward_weight<S, G>(exec, dup, normed.wait(), w.up.grad);
    sums.add(dup, w.up_bias.grad);
  }
  sum.wait();
  if (experts_) kernels::add<S>(exec, View1<S const>(device::flat(t.moe.dx)), device::flat(own_rows(*tp_, t.dnorm)));
  return finish(own_rows(*tp_, t.dnorm), down_bias);
}

template <class P>
void TransformerBlock<P>::backward_attention(BlockWeights<P> const& w, TokenRows const& rows, View2<S const> x,
                                             LayerRecompute const& discarded, BlockActivations<P> const& a,
                                             BlockScratch<P> const& t, View2<S const> own, bool weights,
                                             kernels::ColumnSums<S, G>& sums, View2<S> d) {
  auto& exec = tp_->exec;
  bool const gathers = tp_->sequence && weights;
  auto const norm = [&] { return norm_output(w.norm1, discarded.norm, x, a.norm1(), gathers, t); };
  auto gathering = parallel::start_gather_rows<S>(*tp_, own, t.branch);
  parallel::WholeRows<S> normed;
  if (gathers) normed = norm();
  auto const bias = weights ? bias_to_sum(own, w.attn_out_bias.grad, t) : View1<G>();
  auto const dbranch = gathering.wait();
  parallel::row_linear_backward_input<S>(*tp_, dbranch, w.attn_out.value, t.dheads);
  auto const call = attention_call(rows, true);
  if (discarded.attention) t.attention->forward(call, kept_qkv(a), a.heads, a.lse);
  if (weights) parallel::linear_backward_weight<S, G>(exec, dbranch, a.heads, w.attn_out.grad);
  t.attention->backward(call, kept_qkv(a), a.heads, a.lse, t.dheads, t.dqkv);
  rotate(rows, Rotation::backward, t.dqkv);
  auto sum = parallel::column_linear_backward_input<S>(*tp_, t.dqkv, w.qkv.value, t.dnorm);
  if (!gathers) normed = norm();
  if (weights) {
    parallel::linear_backward_weight<S, G>(exec, t.dqkv, normed.wait(), w.qkv.grad);
    sums.add(t.dqkv, w.qkv_bias.grad);
  }
  sum.wait();
  norm_.backward(exec, w.norm1, own_rows(*tp_, t.dnorm), x, a.norm1(), Store::add, d,
                 {.after = own, .after_bias = bias}, sums);
}

#define P3D_INSTANTIATE(P)     \
  template class NormLayer<P>; \
  template class TransformerBlock<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
