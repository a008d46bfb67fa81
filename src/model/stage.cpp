// SPDX-License-Identifier: Apache-2.0
// A stage binds the views of a slot, of a remade set and of scratch to what its layers read and write, and walks its
// layers. open() is the one place that knows where a buffer lies: in the slot if it was kept, in a remade set between
// the parts of a split backward, else in scratch.
#include <p3d/model/stage.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/parallel/share.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace p3d::model {

using layout::KeptInput;
using layout::StageRecompute;

namespace {

void copy_tokens(device::ExecSpace const& exec, std::span<int const> from, View1<int> to) {
  if (from.empty()) return;
  P3D_REQUIRE(from.size() == to.extent(0), "a microbatch has micro * seq_len tokens");
  device::copy_from_host<int>(exec, from, to);
}

}  // namespace

template <class P>
void Stage<P>::take_of_layer(layout::TakenBuffer const& taken, BlockSizes const& of_all, device::Arena& arena,
                             std::vector<BlockActivations<P>>& blocks) const {
  auto const sizes = layout::layer_sizes(of_all, *config_, stages_->layers(stage_).begin + taken.index);
  blocks[at(taken.index)].bind(parallel::take<S>(arena, taken.buffer, sizes));
}

template <class P>
typename Stage<P>::ActivationSlot Stage<P>::take_slot(StageRecompute const& recompute, RankPlace rank,
                                                      device::Arena& arena) const {
  auto const s = layout::block_sizes(*config_, rank);
  auto const buffers = layout::slot_buffers(*config_, *stages_, stage_, recompute);
  ActivationSlot slot;
  slot.length = rank.length;
  slot.x.resize(at(stages_->num_layers(stage_)) + 1);
  slot.shares.resize(slot.x.size());
  slot.mtp.resize(mtp_.size());
  slot.blocks.resize(at(stages_->num_layers(stage_)) + mtp_.size());
  for (std::size_t i = 0; i <= buffers.taken.size(); ++i) {
    if (i == buffers.saved_begin) slot.begin = arena.used();
    if (i == buffers.saved_end) slot.saved_end = arena.used();
    if (i == buffers.taken.size()) break;
    auto const& taken = buffers.taken[i];
    if (layout::of_layer(taken.buffer)) {
      take_of_layer(taken, s, arena, slot.blocks);
      continue;
    }
    auto const memory = parallel::take<S>(arena, taken.buffer, s);
    parallel::bind(slot, memory);
    if (at(taken.index) < slot.mtp.size()) parallel::bind(slot.mtp[at(taken.index)], memory);
    if (taken.buffer == Buffer::stage_input) slot.x[at(taken.index)] = slot.input;
    if (taken.buffer == Buffer::stage_input_share) slot.shares[at(taken.index)] = slot.input_share;
    if (taken.buffer == Buffer::stage_output) slot.x.back() = slot.output;
  }
  slot.end = arena.used();
  return slot;
}

template <class P>
typename Stage<P>::RebuiltSet Stage<P>::take_rebuilt(RankPlace rank, device::Arena& arena) const {
  auto const s = layout::block_sizes(*config_, rank);
  RebuiltSet set;
  set.length = rank.length;
  set.x.resize(at(recompute_.num_layers()) + 1);
  set.blocks.resize(at(recompute_.num_layers()));
  for (auto const& taken : layout::rebuilt_set(recompute_)) {
    if (layout::of_layer(taken.buffer)) {
      take_of_layer(taken, s, arena, set.blocks);
      continue;
    }
    auto const input = parallel::take<S>(arena, taken.buffer, s);
    parallel::set_view(set.x[at(taken.index)], input.data, input.shape);
  }
  return set;
}

template <class P>
View2<device::bfloat16> Stage<P>::narrow(int slot, Message message) const {
  auto const& s = slots_[at(slot)];
  switch (message) {
    case Message::input: return s.narrow_input;
    case Message::output: return s.narrow_output;
    case Message::gradient: return s.narrow_gradient;
  }
  return {};
}

template <class P>
StageRegion Stage<P>::offloaded(int slot, bool gradients) const {
  auto const& s = slots_[at(slot)];
  return {arena_begin_ + s.begin, static_cast<std::int64_t>((gradients ? s.end : s.saved_end) - s.begin)};
}

template <class P>
void Stage<P>::resume(int slot, TokenRows rows, bool gradients) {
  auto& s = slots_[at(slot)];
  s.rows = rows;
  s.rows.positions = s.positions;
  s.rows.documents = s.documents;
  s.predicts = !s.mtp.empty();
  s.rebuilt = gradients && !rebuilt_.empty() ? slot : -1;
}

template <class P>
Stage<P>::Stage(config::Config const& c, layout::StageMap const& stages, int stage,
                layout::StageActivations const& sets, layout::StageParams const& params, parallel::TensorParallel& tp,
                device::Arena& arena, StageScratch<P> scratch)
    : config_(&c),
      stages_(&stages),
      stage_(stage),
      first_(stages.is_first(stage)),
      last_(stages.is_last(stage)),
      has_embedding_(stages.has_embedding(stage)),
      has_head_(stages.has_head(stage)),
      owns_gradient_(layout::owns_gradient(stages, stage)),
      narrow_messages_(layout::travels_narrow(c)),
      offloads_(sets.offload_places > 0),
      one_piece_(offloads_ || c.batch.variable || c.model.moe.on()),
      arena_begin_(arena.take<std::byte>(0).data() - arena.used()),
      tp_(&tp),
      recompute_(sets.recompute),
      none_(layout::no_recompute(stages, stage)),
      forward_{scratch.forward, {}, {}},
      backward_{scratch.backward, {}, {}},
      embedding_(c, tp, stages.pipeline_rank(stage)),
      head_(c, tp, stages.pipeline_rank(stage)),
      final_norm_(c) {
  P3D_REQUIRE(recompute_.num_layers() == stages.num_layers(stage), "it is known what each layer recomputes");
  P3D_REQUIRE(tp.sequence == c.parallel.sequence, "buffers and messages agree on who has which rows");
  P3D_REQUIRE(!offloads_ || ((sets.rebuilt == 0 || sets.rebuilt == sets.slots) && recompute_.slots_kept == 0),
              "slots whose microbatches are offloaded are alike");
  for (auto l = c.model.layers; last_ && l < c.model.all_layers(); ++l) mtp_.emplace_back(c, tp, static_cast<int>(l));
  auto const rebuild = [&] {
    rebuilt_memory_.push_back(
        MemoryPiece::of(arena, [&] { rebuilt_.push_back(take_rebuilt(place(c.model.seq_len), arena)); }));
  };
  for (int k = 0; k < sets.slots; ++k) {
    slot_memory_.push_back(
        MemoryPiece::of(arena, [&] { slots_.push_back(take_slot(recompute(k), place(c.model.seq_len), arena)); }));
    auto& slot = slots_.back();
    if (!offloads_ || sets.rebuilt == 0) continue;
    rebuild();
    slot.end = arena.used();
  }
  for (int k = 0; k < sets.rebuilt && !offloads_; ++k) {
    rebuild();
    free_rebuilt_.push_back(k);
  }
  for (auto* opened : {&forward_, &backward_}) {
    opened->x.resize(static_cast<std::size_t>(recompute_.num_layers()) + 1);
    opened->saved.resize(static_cast<std::size_t>(recompute_.num_layers()));
  }

  auto const range = stages.layers(stage);
  auto const& items = params.items();
  auto const of_vocabulary = [](layout::LocalParam const& p) { return p.spec->over_pipeline(); };
  first_own_ = static_cast<std::size_t>(std::find_if_not(items.begin(), items.end(), of_vocabulary) - items.begin());
  num_params_ = end_of_own_ = items.size();
  while (end_of_own_ > first_own_ && of_vocabulary(items[end_of_own_ - 1])) --end_of_own_;
  P3D_REQUIRE(std::none_of(items.begin() + static_cast<std::ptrdiff_t>(first_own_),
                           items.begin() + static_cast<std::ptrdiff_t>(end_of_own_), of_vocabulary),
              "parts of the vocabulary come first and last");
  for (auto l = range.begin; l < range.end; ++l) {
    blocks_.emplace_back(c, tp, static_cast<int>(l));
    auto const prefix = fmt::format("layers.{}.", l);
    auto const it =
        std::find_if(items.begin(), items.end(), [&](auto const& p) { return p.spec->name.starts_with(prefix); });
    layer_begin_.push_back(static_cast<std::size_t>(it - items.begin()));
  }
  auto const tail =
      std::find_if(items.begin(), items.end(), [&](auto const& p) { return p.spec->layer >= stages.num_layers(); });
  layer_begin_.push_back(static_cast<std::size_t>(tail - items.begin()));
}

template <class P>
void Stage<P>::shape(int slot, std::int64_t length) {
  auto& s = slots_[at(slot)];
  if (length == 0) length = config_->model.seq_len;
  if (length == s.length) return;
  P3D_REQUIRE(one_piece_ && !offloads_ && s.rebuilt < 0, "a slot that is taken anew is free, and its memory its own");
  auto piece = slot_memory_[at(slot)].opened();
  s = take_slot(recompute(slot), place(length), piece);
}

template <class P>
typename Stage<P>::ActivationSlot& Stage<P>::begin_action(int slot, Workspace<P>& scratch) {
  auto& s = slots_[at(slot)];
  scratch.begin_action(tp_->exec, s.length);
  return s;
}

template <class P>
typename Stage<P>::RebuiltSet& Stage<P>::take_free_set(ActivationSlot& s, int number) {
  s.rebuilt = number;
  auto& set = rebuilt_[at(number)];
  if (set.length != s.length) {
    auto piece = rebuilt_memory_[at(number)].opened();
    set = take_rebuilt(place(s.length), piece);
  }
  return set;
}

template <class P>
void Stage<P>::load(int slot, TokenRows rows, Tokens const& given) {
  auto& s = slots_[at(slot)];
  P3D_REQUIRE(given.positions.size() == s.positions.extent(0),
              "a microbatch has positions where they do not follow from the rows");
  copy_tokens(tp_->exec, given.positions, s.positions);
  copy_tokens(tp_->exec, given.documents, s.documents);
  s.rows = rows;
  s.rows.positions = s.positions;
  s.rows.documents = s.documents;
  if (has_embedding_) copy_tokens(tp_->exec, given.inputs, s.tokens);
  if (!has_head_) return;
  copy_tokens(tp_->exec, given.targets, s.targets);
  s.predicts = !given.mtp_targets.empty();
  for (std::size_t k = 0; k < s.mtp.size() && s.predicts; ++k)
    copy_tokens(tp_->exec, given.mtp_targets.subspan(k * given.targets.size(), given.targets.size()), s.mtp[k].targets);
}

template <class P>
void Stage<P>::take_gradient(int slot, View2<S> gradient_of_next) {
  auto& d = slots_[at(slot)].gradient;
  if (owns_gradient_) {
    Kokkos::deep_copy(tp_->exec, d, gradient_of_next);
  } else {
    d = gradient_of_next;
  }
}

template <class P>
void Stage<P>::embed(StageWeights<P> const& w, ActivationSlot& s, bool training) {
  auto const x = s.x.front();
  if (has_embedding_) embedding_.look_up(w.embedding, s.tokens, x, forward_.scratch->block.branch);
  embedding_.finish(w.positions, s.rows, training, x);
}

template <class P>
void Stage<P>::open(Opened& o, int slot, RebuiltSet const* rebuilt, bool running) {
  auto const& s = slots_[at(slot)];
  auto const& r = recompute(slot);
  o.x.back() = s.x.back();
  for (int l = 0; l < r.num_layers(); ++l) {
    int const begin = r.group_begin(l);
    auto& x = o.x[at(l)] = s.x[at(l)];
    if (x.data() == nullptr) {
      int const place = running ? 0 : l - begin - (r.input(begin) == KeptInput::whole ? 1 : 0);
      x = rebuilt ? rebuilt->x[at(l)] : o.scratch->inputs[at(place)];
    }
    auto& saved = o.saved[at(l)] = s.blocks[at(l)];
    if (!r.layer(l).any()) continue;
    auto const kept = rebuilt ? layout::rebuilt_buffers(r, l) : layout::BufferSet();
    if (rebuilt) saved.take_over(kept, rebuilt->blocks[at(l)]);
    saved.take_over(layout::discarded_buffers(r, l) & ~kept, o.scratch->remade[at(l - begin)]);
  }
}

template <class P>
LayerCall<P> Stage<P>::layer_call(StageWeights<P> const& w, ActivationSlot const& slot, Opened& o, int l,
                                  RoutePass kind) {
  return {w.layers[at(l)], slot.rows, kind, o.x[at(l)], o.saved[at(l)], o.scratch->block, {}, one_piece_};
}

template <class P>
void Stage<P>::remake(StageWeights<P> const& w, int slot, int begin, int end) {
  auto& s = slots_[at(slot)];
  auto const& r = recompute(slot);
  if (r.input(begin) == KeptInput::shared)
    parallel::gather_shares<S>(*tp_, s.shares[at(begin)], device::flat(backward_.x[at(begin)]));
  for (int l = begin; l + 1 < end; ++l)
    blocks_[at(l)].forward(layer_call(w, s, backward_, l, RoutePass::again), backward_.x[at(l + 1)]);
  blocks_[at(end - 1)].remake(layer_call(w, s, backward_, end - 1, RoutePass::again), r.keeps_sums);
}

template <class P>
void Stage<P>::forward(StageWeights<P> const& w, int slot, bool training) {
  auto& s = begin_action(slot, *forward_.scratch);
  open(forward_, slot, nullptr, true);
  if (first_) embed(w, s, training);
  auto const kind = training ? RoutePass::training : RoutePass::evaluation;
  for (int l = 0; l < recompute_.num_layers(); ++l) {
    auto const y = forward_.x[at(l + 1)];
    blocks_[at(l)].forward(layer_call(w, s, forward_, l, kind), y);
    auto const share = s.shares[at(l + 1)];
    if (training && share.data() != nullptr) parallel::keep_share<S>(*tp_, device::flat(y), share);
  }
  if (!last_) return;
  final_norm_.forward(tp_->exec, w.final_norm, s.x.back(), s.final_norm());
  head_.scale(s.final_norm_y, s.final_norm_y);
  if (!has_head_) return;
  head_.forward(w.head, head_of(s), *forward_.scratch, forward_.scratch->loss_sum);
  if (training && s.predicts) predict(w, s);
}

template <class P>
LayerCall<P> Stage<P>::mtp_call(StageWeights<P> const& w, ActivationSlot& s, Workspace<P>& scratch, std::size_t k) {
  auto const layer = s.blocks.size() - s.mtp.size() + k;
  return {w.mtp[k].layer, s.rows, RoutePass::training, s.mtp[k].input, s.blocks[layer], scratch.block, {}, one_piece_};
}

template <class P>
SharedEmbedding<P> Stage<P>::mtp_embedding(StageWeights<P> const& w, ActivationSlot const& s, std::size_t k) const {
  // A block reads the tokens that the block before it, or the model, is to predict.
  return {w.embedding, embedding_, k == 0 ? s.targets : s.mtp[k - 1].targets};
}

namespace {
/// The factors of balancing losses while layers of multi-token prediction run, whose losses have a factor.
template <class P>
class MtpBalance {
public:
  explicit MtpBalance(Workspace<P>& scratch) : scratch_(&scratch), model_(scratch.block.moe.scales) {
    scratch.set_balance({model_.sample * scratch.mtp_factor, model_.token * scratch.mtp_factor});
  }
  MtpBalance(MtpBalance const&) = delete;
  MtpBalance& operator=(MtpBalance const&) = delete;
  ~MtpBalance() { scratch_->set_balance(model_); }

private:
  Workspace<P>* scratch_;
  BalanceScales model_;
};

}  // namespace

template <class P>
void Stage<P>::predict(StageWeights<P> const& w, ActivationSlot& s) {
  auto& scratch = *forward_.scratch;
  MtpBalance<P> const balance(scratch);
  View2<S const> previous = s.final_norm_y;
  for (std::size_t k = 0; k < mtp_.size(); ++k) {
    auto& a = s.mtp[k];
    mtp_[k].forward(w.mtp[k], mtp_embedding(w, s, k), mtp_call(w, s, scratch, k), previous, a);
    head_.forward(w.head, head_of(a), scratch,
                  Kokkos::subview(scratch.mtp_loss_sums, Kokkos::pair<std::size_t, std::size_t>(k, k + 1)));
    previous = a.final_norm_y;
  }
}

template <class P>
View2<typename P::Storage> Stage<P>::predict_backward(StageWeights<P> const& w, ActivationSlot& s) {
  View2<S> left;
  auto& scratch = *backward_.scratch;
  if (!s.predicts || scratch.mtp_factor == 0.0) return left;
  MtpBalance<P> const balance(scratch);
  for (auto k = mtp_.size(); k-- > 0;) {
    auto& a = s.mtp[k];
    auto const d = head_input_gradient(w, head_of(a), scratch.mtp_scales[k], true);
    if (left.data() != nullptr) kernels::add<S>(tp_->exec, View1<S const>(device::flat(left)), device::flat(d));
    View2<S const> const previous = k == 0 ? s.final_norm_y : s.mtp[k - 1].final_norm_y;
    left = mtp_[k].backward(w.mtp[k], mtp_embedding(w, s, k), mtp_call(w, s, scratch, k), d, previous, a);
  }
  return left;
}

template <class P>
void Stage<P>::backward(StageWeights<P> const& w, int slot, double loss_scale, Ready const& ready) {
  auto& s = begin_action(slot, *backward_.scratch);
  auto const& r = recompute(slot);
  open(backward_, slot, nullptr, false);
  if (last_) {
    head_backward(w, s, loss_scale, true);
    if (ready) ready(layer_begin_.back(), end_of_own_);
  }
  for (int l = r.num_layers(); l-- > 0;) {
    auto const i = at(l);
    if (r.layer(l).full && r.group_end(l) == l + 1) remake(w, slot, r.group_begin(l), l + 1);
    auto call = layer_call(w, s, backward_, l, RoutePass::training);
    call.discarded = r.layer(l);
    blocks_[i].backward(call, s.gradient);
    if (ready) ready(layer_begin_[i], layer_begin_[i + 1]);
  }
  if (first_) embedding_.finish_gradient(s.rows, s.gradient);
  if (first_) embed_backward(w, s, s.gradient);
  if (ready) ready(first_own_, layer_begin_.front());
}

template <class P>
void Stage<P>::backward_input(StageWeights<P> const& w, int slot, double loss_scale) {
  auto& s = begin_action(slot, *backward_.scratch);
  auto const& r = recompute(slot);
  RebuiltSet* rebuilt = nullptr;
  if (r.any() && offloads_) {
    rebuilt = &take_free_set(s, slot);
  } else if (r.any()) {
    P3D_REQUIRE(!free_rebuilt_.empty(), "a stage has a set for every microbatch between I and W");
    rebuilt = &take_free_set(s, free_rebuilt_.back());
    free_rebuilt_.pop_back();
  }
  open(backward_, slot, rebuilt, false);
  if (s.weight_input.data() != nullptr) Kokkos::deep_copy(tp_->exec, s.weight_input, backward_.x.front());
  if (last_) head_backward(w, s, loss_scale, false);
  for (int l = r.num_layers(); l-- > 0;) {
    auto const i = at(l);
    if (r.layer(l).full && r.group_end(l) == l + 1) remake(w, slot, r.group_begin(l), l + 1);
    auto call = layer_call(w, s, backward_, l, RoutePass::training);
    call.discarded = r.layer(l);
    blocks_[i].backward_input(call, backward_.x[i + 1], s.gradient);
    // Views of these two may have changed places with scratch: their owner takes over what it got.
    auto& owner = r.layer(l).full ? rebuilt->blocks[i] : s.blocks[i];
    owner.up = call.a.up;
    owner.qkv = call.a.qkv;
  }
  // The ranks of a divided embedding wait for it.
  if (first_ && !has_embedding_) embedding_.finish_gradient(s.rows, s.gradient);
}

template <class P>
void Stage<P>::backward_weight(StageWeights<P> const& w, int slot, Ready const& ready) {
  auto& s = begin_action(slot, *backward_.scratch);
  open(backward_, slot, s.rebuilt < 0 ? nullptr : &rebuilt_[at(s.rebuilt)], false);
  if (s.weight_input.data() != nullptr) backward_.x.front() = s.weight_input;
  if (last_) {
    if (has_head_) head_.backward_weight(w.head, head_of(s), *backward_.scratch);
    if (ready) ready(layer_begin_.back(), end_of_own_);
  }
  for (int l = recompute_.num_layers(); l-- > 0;) {
    blocks_[at(l)].backward_weight(layer_call(w, s, backward_, l, RoutePass::training), backward_.x[at(l + 1)]);
    if (ready) ready(layer_begin_[at(l)], layer_begin_[at(l + 1)]);
  }
  if (has_embedding_) embedding_.finish_gradient(s.rows, s.gradient);
  if (first_) embed_backward(w, s, s.gradient);
  if (ready) ready(first_own_, layer_begin_.front());
  if (s.rebuilt < 0) return;
  if (!offloads_) free_rebuilt_.push_back(s.rebuilt);
  s.rebuilt = -1;
}

template <class P>
std::vector<std::vector<std::int64_t>> Stage<P>::take_expert_counts() {
  std::vector<std::vector<std::int64_t>> out;
  for (auto& block : blocks_) out.push_back(block.take_counts());
  for (auto& block : mtp_) out.push_back(block.take_counts());
  return out;
}

template <class P>
void Stage<P>::head_backward(StageWeights<P> const& w, ActivationSlot& s, double loss_scale, bool weights) {
  auto& exec = tp_->exec;
  auto const end_at_norm = [&](View2<S const> dy) {
    final_norm_.backward(exec, w.final_norm, dy, s.x.back(), s.final_norm(), kernels::Store::overwrite, s.gradient);
  };
  if (!has_head_) {
    if (!head_.scales()) return end_at_norm(s.head_gradient);
    auto const scaled = own_rows(*tp_, backward_.scratch->block.branch);
    head_.scale(s.head_gradient, scaled);
    return end_at_norm(scaled);
  }
  auto const of_blocks = predict_backward(w, s);
  auto const dy = head_input_gradient(w, head_of(s), loss_scale, weights);
  head_.scale(dy, dy);
  if (of_blocks.data() != nullptr) kernels::add<S>(exec, View1<S const>(device::flat(of_blocks)), device::flat(dy));
  end_at_norm(dy);
}

template <class P>
View2<typename P::Storage> Stage<P>::head_input_gradient(StageWeights<P> const& w, HeadUse<P> const& use, double scale,
                                                         bool weights) {
  auto& scratch = *backward_.scratch;
  head_.backward(w.head, use, scale, scratch, scratch.dfinal, weights);
  return own_rows(*tp_, scratch.dfinal);
}

template <class P>
void Stage<P>::embed_backward(StageWeights<P> const& w, ActivationSlot& s, View2<S> d) {
  embedding_.add_position_gradient(w.positions, s.rows, d);
  if (has_embedding_) embedding_.add_gradient(w.embedding, s.tokens, d, backward_.scratch->block.branch);
}

#define P3D_INSTANTIATE(P) template class Stage<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
