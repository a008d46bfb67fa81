// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/stage.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::model {

namespace {

/// Stands in for the arena to learn how much will be taken. What no memory holds is `most`: sums do not overflow.
struct SizeCounter {
  static constexpr std::size_t most = std::size_t{1} << 62;
  std::size_t bytes = 0;
  template <class T>
  View1<T> take(std::int64_t n) {
    auto const wanted = static_cast<std::size_t>(n);
    bytes = std::min(most, bytes + (wanted < most / sizeof(T) ? device::Arena::padded(wanted * sizeof(T)) : most));
    return {};
  }
  template <class T>
  View2<T> take(std::int64_t rows, std::int64_t cols) {
    take<T>(rows * cols);
    return {};
  }
};

void copy_tokens(std::span<int const> from, View1<int> to) {
  if (from.empty()) return;
  P3D_REQUIRE(from.size() == to.extent(0), "a microbatch has micro * seq_len tokens");
  Kokkos::View<int const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const host(from.data(),
                                                                                                  from.size());
  Kokkos::deep_copy(to, host);
}

/// Whether activations go from stage to stage in fewer bits than they have.
bool travels_narrow(config::Config const& c) {
  return c.parallel.pp > 1 && c.precision.pipeline == config::Precision::bf16 &&
         c.run.precision == config::Precision::fp32;
}

std::int64_t attention_elements(config::Config const& c, BlockSizes const& s) {
  kernels::AttentionShape shape;
  shape.rows = {0, c.batch.micro, c.model.seq_len};
  shape.heads = s.heads;
  shape.kv_heads = s.kv_heads;
  shape.head_dim = s.head_dim;
  shape.global_heads = c.model.heads;
  return kernels::attention_workspace(shape);
}

}  // namespace

template <class P>
template <class Source>
void Workspace<P>::take(config::Config const& c, bool with_loss, Source& source) {
  auto const s = block_sizes(c);
  block = take_scratch<P>(source, s, attention_elements(c, s));
  if (!with_loss) return;
  dfinal = source.template take<typename P::Storage>(s.tokens, s.hidden);
  row_max = source.template take<typename P::Accumulate>(s.tokens);
  sums = source.template take<typename P::Accumulate>(2, s.tokens);
}

template <class P>
Workspace<P>::Workspace(config::Config const& c, bool with_loss, device::Arena& arena) {
  take(c, with_loss, arena);
}

template <class P>
std::size_t Workspace<P>::bytes(config::Config const& c, bool with_loss) {
  SizeCounter counter;
  Workspace().take(c, with_loss, counter);
  return counter.bytes;
}

template <class P>
template <class Source>
void Stage<P>::take_slots(config::Config const& c, layout::StageMap const& stages, int stage, int num_slots,
                          Source& source, std::vector<ActivationSlot>& slots) {
  auto const s = block_sizes(c);
  auto const layers = stages.num_layers(stage);
  bool const narrow = travels_narrow(c);
  std::int64_t const vocab = layout::padded_shard(c.model.vocab_size, c.parallel.tp, 0).size();
  for (int k = 0; k < num_slots; ++k) {
    ActivationSlot slot;
    for (int l = 0; l <= layers; ++l) slot.x.push_back(source.template take<S>(s.tokens, s.hidden));
    for (int l = 0; l < layers; ++l) slot.blocks.push_back(take_block<P>(source, s));
    slot.d = source.template take<S>(s.tokens, s.hidden);
    if (narrow) {
      for (auto& buffer : slot.narrow) buffer = source.template take<device::bfloat16>(s.tokens, s.hidden);
    }
    if (stages.is_first(stage)) slot.tokens = source.template take<int>(s.tokens);
    if (stages.is_last(stage)) {
      slot.targets = source.template take<int>(s.tokens);
      slot.final_norm = take_norm<P>(source, s);
      slot.logits = source.template take<S>(s.tokens, vocab);
      slot.lse = source.template take<typename P::Accumulate>(s.tokens);
    }
    slots.push_back(std::move(slot));
  }
}

template <class P>
std::size_t Stage<P>::bytes(config::Config const& c, layout::StageMap const& stages, int stage, int num_slots) {
  SizeCounter counter;
  std::vector<ActivationSlot> slots;
  take_slots(c, stages, stage, 1, counter, slots);  // all slots are alike, and every piece is padded
  auto const count = static_cast<std::size_t>(num_slots);
  return count > 0 && counter.bytes > SizeCounter::most / count ? SizeCounter::most : counter.bytes * count;
}

template <class P>
Stage<P>::Stage(config::Config const& c, layout::StageMap const& stages, int stage, layout::StageParams const& params,
                parallel::TensorParallel& tp, device::Arena& arena, Workspace<P>& workspace, int num_slots)
    : stage_(stage),
      first_(stages.is_first(stage)),
      last_(stages.is_last(stage)),
      narrow_messages_(travels_narrow(c)),
      tp_(&tp),
      shared_(&workspace),
      final_norm_(c) {
  take_slots(c, stages, stage, num_slots, arena, slots_);

  auto const range = stages.layers(stage);
  auto const& items = params.items();
  num_params_ = items.size();
  for (auto l = range.begin; l < range.end; ++l) {
    blocks_.emplace_back(c, tp, static_cast<int>(l));
    auto const prefix = fmt::format("layers.{}.", l);
    auto const it =
        std::find_if(items.begin(), items.end(), [&](auto const& p) { return p.spec->name.starts_with(prefix); });
    layer_begin_.push_back(static_cast<std::size_t>(it - items.begin()));
  }
  auto const tail =
      std::find_if(items.begin(), items.end(), [&](auto const& p) { return p.spec->name == "final_norm.weight"; });
  layer_begin_.push_back(static_cast<std::size_t>(tail - items.begin()));

  auto const shard = layout::padded_shard(c.model.vocab_size, tp.size(), tp.rank());
  vocab_ = {shard.begin, shard.size(), std::clamp<std::int64_t>(c.model.vocab_size - shard.begin, 0, shard.size())};
  if (first_) embed_dropout_ = kernels::make_dropout(c.model.dropout, c.run.seed, "dropout.embed");
}

template <class P>
void Stage<P>::load(int slot, TokenRows rows, std::span<int const> tokens, std::span<int const> targets) {
  auto& s = slots_[at(slot)];
  s.rows = rows;
  if (first_) copy_tokens(tokens, s.tokens);
  if (last_) copy_tokens(targets, s.targets);
}

template <class P>
void Stage<P>::embed(StageWeights<P> const& w, ActivationSlot& s, bool training) {
  parallel::vocab_embedding_forward<S>(*tp_, vocab_, s.tokens, w.embedding.value, s.x.front());
  if (w.positions.value.extent(0) > 0)
    kernels::position_forward<S>(tp_->exec, s.rows, w.positions.value, 0, s.x.front());
  if (training && embed_dropout_.active()) kernels::dropout_in_place<S>(tp_->exec, s.rows, embed_dropout_, s.x.front());
}

template <class P>
double Stage<P>::forward(StageWeights<P> const& w, int slot, bool training) {
  auto& s = slots_[at(slot)];
  if (first_) embed(w, s, training);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l].forward(w.layers[l], s.rows, training, s.x[l], s.blocks[l], shared_->block, s.x[l + 1]);
  }
  if (!last_) return 0.0;
  final_norm_.forward(tp_->exec, w.final_norm, s.x.back(), s.final_norm);
  parallel::column_linear_forward<S>(*tp_, s.final_norm.y, w.head.value, View1<S const>(), s.logits);
  return parallel::vocab_loss_forward<S>(*tp_, vocab_, s.logits, s.targets, {s.lse, shared_->row_max, shared_->sums});
}

template <class P>
void Stage<P>::backward(StageWeights<P> const& w, int slot, double loss_scale, Ready const& ready) {
  auto& s = slots_[at(slot)];
  if (last_) {
    head_backward(w, s, loss_scale, true);
    if (ready) ready(layer_begin_.back(), num_params_);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward(w.layers[l], s.rows, s.x[l], s.blocks[l], shared_->block, s.d);
    if (ready) ready(layer_begin_[l], layer_begin_[l + 1]);
  }
  if (first_) embed_backward(w, s, s.d);
  if (ready) ready(0, layer_begin_.front());
}

template <class P>
void Stage<P>::backward_input(StageWeights<P> const& w, int slot, double loss_scale) {
  auto& s = slots_[at(slot)];
  if (last_) head_backward(w, s, loss_scale, false);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward_input(w.layers[l], s.rows, s.x[l], s.x[l + 1], s.blocks[l], shared_->block, s.d);
  }
}

template <class P>
void Stage<P>::backward_weight(StageWeights<P> const& w, int slot, Ready const& ready) {
  auto& s = slots_[at(slot)];
  if (last_) {
    head_backward_weight(w, s);
    if (ready) ready(layer_begin_.back(), num_params_);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward_weight(w.layers[l], s.x[l + 1], s.blocks[l]);
    if (ready) ready(layer_begin_[l], layer_begin_[l + 1]);
  }
  if (first_) embed_backward(w, s, s.d);
  if (ready) ready(0, layer_begin_.front());
}

template <class P>
void Stage<P>::head_backward(StageWeights<P> const& w, ActivationSlot& s, double loss_scale, bool weights) {
  auto& exec = tp_->exec;
  parallel::vocab_loss_backward<S>(*tp_, vocab_, s.targets, s.lse, static_cast<typename P::Accumulate>(loss_scale),
                                   s.logits);
  auto sum = parallel::column_linear_backward_input<S>(*tp_, s.logits, w.head.value, shared_->dfinal);
  if (weights) head_backward_weight(w, s);
  sum.wait();
  final_norm_.backward(exec, w.final_norm, shared_->dfinal, s.x.back(), s.final_norm, kernels::Store::overwrite, s.d);
}

template <class P>
void Stage<P>::head_backward_weight(StageWeights<P> const& w, ActivationSlot& s) {
  parallel::linear_backward_weight<S, typename P::Gradient>(tp_->exec, s.logits, s.final_norm.y, w.head.grad,
                                                            View1<typename P::Gradient>());
}

template <class P>
void Stage<P>::embed_backward(StageWeights<P> const& w, ActivationSlot& s, View2<S> d) {
  auto& exec = tp_->exec;
  if (embed_dropout_.active()) kernels::dropout_in_place<S>(exec, s.rows, embed_dropout_, d);
  if (w.positions.grad.extent(0) > 0)
    kernels::position_backward<S, typename P::Gradient>(exec, s.rows, d, 0, w.positions.grad);
  kernels::embedding_backward<S, typename P::Gradient>(exec, s.tokens, d, vocab_.begin, w.embedding.grad);
}

template <class P>
std::vector<double> Stage<P>::logits(int slot, std::int64_t row) const {
  auto const& s = slots_[at(slot)];
  P3D_REQUIRE(last_, "only the last stage has logits");
  auto const line = View1<S>(s.logits.data() + row * s.logits.stride(0), vocab_.valid_rows);
  auto const host = device::host_copy(line);
  std::vector<double> out(static_cast<std::size_t>(vocab_.valid_rows));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(host(i));
  return out;
}

#define P3D_INSTANTIATE(P)      \
  template struct Workspace<P>; \
  template class Stage<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
