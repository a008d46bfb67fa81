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

template <class T>
template <class Source>
void Workspace<T>::take(config::Config const& c, bool with_loss, Source& source) {
  auto const s = block_sizes(c);
  block = take_scratch<T>(source, s, attention_elements(c, s));
  if (!with_loss) return;
  dfinal = source.template take<T>(s.tokens, s.hidden);
  row_max = source.template take<T>(s.tokens);
  sums = source.template take<T>(2, s.tokens);
}

template <class T>
Workspace<T>::Workspace(config::Config const& c, bool with_loss, device::Arena& arena) {
  take(c, with_loss, arena);
}

template <class T>
std::size_t Workspace<T>::bytes(config::Config const& c, bool with_loss) {
  SizeCounter counter;
  Workspace().take(c, with_loss, counter);
  return counter.bytes;
}

template <class T>
template <class Source>
void Stage<T>::take_slots(config::Config const& c, layout::StageMap const& stages, int stage, int num_slots,
                          Source& source, std::vector<ActivationSlot>& slots) {
  auto const s = block_sizes(c);
  auto const layers = stages.num_layers(stage);
  std::int64_t const vocab = layout::padded_shard(c.model.vocab_size, c.parallel.tp, 0).size();
  for (int k = 0; k < num_slots; ++k) {
    ActivationSlot slot;
    for (int l = 0; l <= layers; ++l) slot.x.push_back(source.template take<T>(s.tokens, s.hidden));
    for (int l = 0; l < layers; ++l) slot.blocks.push_back(take_block<T>(source, s));
    slot.d = source.template take<T>(s.tokens, s.hidden);
    if (stages.is_first(stage)) slot.tokens = source.template take<int>(s.tokens);
    if (stages.is_last(stage)) {
      slot.targets = source.template take<int>(s.tokens);
      slot.final_norm = take_norm<T>(source, s);
      slot.logits = source.template take<T>(s.tokens, vocab);
      slot.lse = source.template take<T>(s.tokens);
    }
    slots.push_back(std::move(slot));
  }
}

template <class T>
std::size_t Stage<T>::bytes(config::Config const& c, layout::StageMap const& stages, int stage, int num_slots) {
  SizeCounter counter;
  std::vector<ActivationSlot> slots;
  take_slots(c, stages, stage, 1, counter, slots);  // all slots are alike, and every piece is padded
  auto const count = static_cast<std::size_t>(num_slots);
  return count > 0 && counter.bytes > SizeCounter::most / count ? SizeCounter::most : counter.bytes * count;
}

template <class T>
Stage<T>::Stage(config::Config const& c, layout::StageMap const& stages, int stage, Parameters<T>& params,
                parallel::TensorParallel& tp, device::Arena& arena, Workspace<T>& workspace, int num_slots)
    : stage_(stage), first_(stages.is_first(stage)), last_(stages.is_last(stage)), tp_(&tp), shared_(&workspace) {
  take_slots(c, stages, stage, num_slots, arena, slots_);

  auto const range = stages.layers(stage);
  auto const& items = params.layout().items();
  num_params_ = items.size();
  for (auto l = range.begin; l < range.end; ++l) {
    blocks_.emplace_back(c, params, tp, static_cast<int>(l));
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
  if (first_) {
    embedding_ = params.matrix("embed.token.weight");
    if (c.model.position == config::Position::learned) positions_ = params.matrix("embed.position.weight");
    embed_dropout_ = kernels::make_dropout(c.model.dropout, c.run.seed, "dropout.embed");
  }
  if (last_) {
    final_norm_ = NormLayer<T>(c, params, "final_norm");
    head_ = params.matrix(c.model.tied_embeddings ? "embed.token.weight" : "head.weight");
  }
}

template <class T>
void Stage<T>::load(int slot, TokenRows rows, std::span<int const> tokens, std::span<int const> targets) {
  auto& s = slots_[at(slot)];
  s.rows = rows;
  if (first_) copy_tokens(tokens, s.tokens);
  if (last_) copy_tokens(targets, s.targets);
}

template <class T>
void Stage<T>::embed(ActivationSlot& s, bool training) {
  parallel::vocab_embedding_forward<T>(*tp_, vocab_, s.tokens, embedding_.value, s.x.front());
  if (positions_.value.extent(0) > 0) kernels::position_forward<T>(tp_->exec, s.rows, positions_.value, 0, s.x.front());
  if (training && embed_dropout_.active()) kernels::dropout_in_place<T>(tp_->exec, s.rows, embed_dropout_, s.x.front());
}

template <class T>
double Stage<T>::forward(int slot, bool training) {
  auto& s = slots_[at(slot)];
  if (first_) embed(s, training);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l].forward(s.rows, training, s.x[l], s.blocks[l], shared_->block, s.x[l + 1]);
  }
  if (!last_) return 0.0;
  final_norm_.forward(tp_->exec, s.x.back(), s.final_norm);
  parallel::column_linear_forward<T>(*tp_, s.final_norm.y, head_.value, View1<T const>(), s.logits);
  return parallel::vocab_loss_forward<T>(*tp_, vocab_, s.logits, s.targets, {s.lse, shared_->row_max, shared_->sums});
}

template <class T>
void Stage<T>::backward(int slot, double loss_scale, Ready const& ready) {
  auto& s = slots_[at(slot)];
  if (last_) {
    head_backward(s, loss_scale, true);
    if (ready) ready(layer_begin_.back(), num_params_);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward(s.rows, s.x[l], s.blocks[l], shared_->block, s.d);
    if (ready) ready(layer_begin_[l], layer_begin_[l + 1]);
  }
  if (first_) embed_backward(s, s.d);
  if (ready) ready(0, layer_begin_.front());
}

template <class T>
void Stage<T>::backward_input(int slot, double loss_scale) {
  auto& s = slots_[at(slot)];
  if (last_) head_backward(s, loss_scale, false);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward_input(s.rows, s.x[l], s.x[l + 1], s.blocks[l], shared_->block, s.d);
  }
}

template <class T>
void Stage<T>::backward_weight(int slot, Ready const& ready) {
  auto& s = slots_[at(slot)];
  if (last_) {
    head_backward_weight(s);
    if (ready) ready(layer_begin_.back(), num_params_);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward_weight(s.x[l + 1], s.blocks[l]);
    if (ready) ready(layer_begin_[l], layer_begin_[l + 1]);
  }
  if (first_) embed_backward(s, s.d);
  if (ready) ready(0, layer_begin_.front());
}

template <class T>
void Stage<T>::head_backward(ActivationSlot& s, double loss_scale, bool weights) {
  auto& exec = tp_->exec;
  parallel::vocab_loss_backward<T>(*tp_, vocab_, s.targets, s.lse, static_cast<T>(loss_scale), s.logits);
  auto sum = parallel::column_linear_backward_input<T>(*tp_, s.logits, head_.value, shared_->dfinal);
  if (weights) head_backward_weight(s);
  sum.wait();
  final_norm_.backward(exec, shared_->dfinal, s.x.back(), s.final_norm, kernels::Store::overwrite, s.d);
}

template <class T>
void Stage<T>::head_backward_weight(ActivationSlot& s) {
  parallel::linear_backward_weight<T>(tp_->exec, s.logits, s.final_norm.y, head_.grad, View1<T>());
}

template <class T>
void Stage<T>::embed_backward(ActivationSlot& s, View2<T> d) {
  auto& exec = tp_->exec;
  if (embed_dropout_.active()) kernels::dropout_in_place<T>(exec, s.rows, embed_dropout_, d);
  if (positions_.grad.extent(0) > 0) kernels::position_backward<T>(exec, s.rows, d, 0, positions_.grad);
  kernels::embedding_backward<T>(exec, s.tokens, d, vocab_.begin, embedding_.grad);
}

template <class T>
std::vector<double> Stage<T>::logits(int slot, std::int64_t row) const {
  auto const& s = slots_[at(slot)];
  P3D_REQUIRE(last_, "only the last stage has logits");
  auto const line = View1<T>(s.logits.data() + row * s.logits.stride(0), vocab_.valid_rows);
  auto const host = device::host_copy(line);
  std::vector<double> out(static_cast<std::size_t>(vocab_.valid_rows));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(host(i));
  return out;
}

template struct Workspace<float>;
template struct Workspace<double>;
template class Stage<float>;
template class Stage<double>;

}  // namespace p3d::model
