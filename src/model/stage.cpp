// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/stage.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/embedding.hpp>
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

/// Whether activations go from stage to stage in fewer bits than they have.
bool travels_narrow(config::Config const& c) {
  return c.parallel.pp > 1 && c.precision.pipeline == config::Precision::bf16 &&
         c.run.precision == config::Precision::fp32;
}

/// Stage `stage` and the next one hand over on one rank, without a message.
bool hands_over(layout::StageMap const& stages, int stage) {
  return stage >= 0 && !stages.is_last(stage) && stages.pipeline_rank(stage) == stages.pipeline_rank(stage + 1);
}

/// Whether a stage has a buffer for the gradient of its own. The others work in that of the stage behind them.
bool owns_gradient(layout::StageMap const& stages, int stage) {
  return !hands_over(stages, stage) || !hands_over(stages, stage - 1);
}

/// Whether rows are told their positions: they do not follow from their numbers where documents begin anew, or where a
/// rank has some tokens of each sample.
bool needs_positions(config::Config const& c) { return c.data.reset_positions || c.data.pack || c.parallel.cp > 1; }

/// What `take` takes from the arena.
template <class Take>
MemoryPiece piece_of(device::Arena& arena, Take const& take) {
  auto* const data = arena.take<std::byte>(0).data();
  auto const before = arena.used();
  take();
  return {data, arena.used() - before};
}
/// To take it anew.
device::Arena opened(MemoryPiece const& piece) { return {piece.bytes, "p3d::model::piece", piece.data}; }

}  // namespace

void RecomputeScratch::add(layout::StageRecompute const& stage) {
  for (int l = 0; l < stage.num_layers(); l = stage.group_end(l)) {
    if (!stage.layer(l).any()) continue;
    int const end = stage.group_end(l);
    parts = parts | discarded_parts(stage, l);
    layers = std::max(layers, end - l);
    separate_norms = separate_norms || stage.layer(l).full;
    inputs = std::max(inputs, end - l - (stage.input(l) == KeptInput::whole ? 1 : 0));
  }
}

template <class P>
template <class Source>
void Workspace<P>::take(Source& source) {
  using S = typename P::Storage;
  auto const& c = *config_;
  auto const s = block_sizes(c, rank);
  block = take_scratch<P>(source, s);
  using Attention = parallel::ContextAttention<S>;
  block.attention = std::make_shared<Attention>(
      Attention::take(source, layout::context_division(c), context_heads(c, rank.tp), c.batch.micro));
  bool const one_norm = recompute_.parts.norm_outputs && !recompute_.separate_norms;
  auto const parts = one_norm ? recompute_.parts.without({.norm_outputs = true}) : recompute_.parts;
  for (int i = 0; i < recompute_.layers; ++i) {
    auto& set = remade.emplace_back(take_block<P>(source, s, parts));
    if (!one_norm) continue;
    // Where its output is gathered it is made at its place.
    set.norm1.y = set.norm2.y =
        s.sequence ? device::rows(block.gathered, s.first_row, s.first_row + s.rows) : take_rows<P>(source, s);
  }
  for (int i = 0; i < recompute_.inputs; ++i) inputs.push_back(take_rows<P>(source, s));
  if (!with_loss_) return;
  dfinal = s.sequence ? block.dnorm : take_tokens<S>(source, s, s.hidden);
  using Sum = typename P::Accumulate;
  row_max = View1<Sum>(source.template take<Sum>(s.most_tokens).data(), s.tokens);
  sums = View2<Sum>(source.template take<Sum>(2, s.most_tokens).data(), 2, s.tokens);
}

template <class P>
Workspace<P>::Workspace(config::Config const& c, RecomputeScratch const& recompute, bool with_loss,
                        device::Arena& arena, int tp_rank, StageExchanges exchanges)
    : Workspace(c, recompute, with_loss) {
  rank = {tp_rank, exchanges.context ? exchanges.context->rank() : 0, c.model.seq_len};
  exchanges_ = std::move(exchanges);
  memory_ = piece_of(arena, [&] { take(arena); });
  attach();
}

template <class P>
void Workspace<P>::attach() {
  if (exchanges_.context) block.attention->attach(ExecSpace(), *exchanges_.context);
  block.moe.experts = exchanges_.experts;
  block.moe.sample_ranks = exchanges_.sample_ranks;
}

template <class P>
void Workspace<P>::shape(std::int64_t length) {
  if (length == rank.length) return;
  rank.length = length;
  auto memory = opened(memory_);
  remade.clear();
  inputs.clear();
  take(memory);
  attach();
}

template <class P>
std::size_t Workspace<P>::bytes(config::Config const& c, RecomputeScratch const& recompute, bool with_loss) {
  device::ArenaSize counter;
  Workspace(c, recompute, with_loss).take(counter);
  return counter.bytes;
}

template <class P>
template <class Source>
typename Stage<P>::ActivationSlot Stage<P>::take_slot(config::Config const& c, layout::StageMap const& stages,
                                                      int stage, StageRecompute const& recompute, RankPlace rank,
                                                      Source& source) {
  auto const s = block_sizes(c, rank);
  auto const layers = stages.num_layers(stage);
  std::int64_t const vocab = layout::padded_shard(c.model.vocab_size, c.parallel.tp, 0).size();
  ActivationSlot slot;
  slot.length = rank.length;
  slot.x.resize(static_cast<std::size_t>(layers) + 1);
  slot.shares.resize(slot.x.size());
  auto const take_x = [&](int l) {
    auto const at = static_cast<std::size_t>(l);
    auto const kept = recompute.input(l);
    bool const handed_over = l == 0 && hands_over(stages, stage - 1);
    if (kept == KeptInput::whole && !handed_over) slot.x[at] = take_rows<P>(source, s);
    if (kept == KeptInput::shared) {
      auto const share = s.tokens * s.hidden / c.parallel.tp;
      slot.shares[at] = View1<S>(source.template take<S>(s.most_tokens * s.hidden / c.parallel.tp).data(), share);
    }
  };
  if (travels_narrow(c)) {
    for (auto& buffer : slot.narrow)
      buffer = device::rows(source.template take<device::bfloat16>(s.most_rows, s.hidden), 0, s.rows);
  }
  // In the order of offloaded(): what waits for backward, and then what only messages and the backward use.
  slot.begin = source.used();
  bool const output_waits = stages.is_last(stage) || hands_over(stages, stage);
  for (int l = 0; l < layers; ++l) take_x(l);
  if (output_waits) take_x(static_cast<int>(layers));
  auto const first_layer = stages.layers(stage).begin;
  for (int l = 0; l < layers; ++l)
    slot.blocks.push_back(take_block<P>(source, layer_sizes(s, c, first_layer + l), kept_parts(recompute, l)));
  auto const take_each = [&]<class T>(T) {  // one of every token
    return View1<T>(source.template take<T>(s.most_tokens).data(), s.tokens);
  };
  if (needs_positions(c)) slot.positions = take_each(int());
  if (c.data.pack) slot.documents = source.template take<int>(c.batch.micro * c.model.seq_len);
  bool const whole_vocabulary = !c.divides_vocabulary();
  if (stages.is_first(stage) && whole_vocabulary) slot.tokens = take_each(int());
  if (stages.is_last(stage)) slot.final_norm = take_norm<P>(source, s);
  if (stages.is_last(stage) && whole_vocabulary) {
    slot.targets = take_each(int());
    slot.logits = take_tokens<S>(source, s, vocab);
    slot.lse = take_each(typename P::Accumulate());
  }
  slot.saved_end = source.used();
  if (!output_waits) take_x(static_cast<int>(layers));
  if (owns_gradient(stages, stage)) slot.d = take_rows<P>(source, s);
  slot.end = source.used();
  return slot;
}

template <class P>
template <class Source>
typename Stage<P>::RebuiltSet Stage<P>::take_rebuilt(config::Config const& c, std::int64_t first_layer,
                                                     StageRecompute const& recompute, RankPlace rank, Source& source) {
  auto const s = block_sizes(c, rank);
  RebuiltSet set;
  set.length = rank.length;
  set.x.resize(static_cast<std::size_t>(recompute.num_layers()) + 1);
  for (int l = 0; l < recompute.num_layers(); ++l) {
    if (recompute.input(l) != KeptInput::whole) set.x[static_cast<std::size_t>(l)] = take_rows<P>(source, s);
    set.blocks.push_back(take_block<P>(source, layer_sizes(s, c, first_layer + l), rebuilt_parts(recompute, l)));
  }
  return set;
}

template <class P>
std::size_t Stage<P>::bytes(config::Config const& c, layout::StageMap const& stages, int stage,
                            layout::StageActivations const& sets) {
  // Sets of a kind are alike, and every piece is padded.
  std::size_t total = 0;
  auto const add = [&](int count, auto const& take) {
    if (count <= 0) return;
    device::ArenaSize counter;
    take(counter);
    auto const n = static_cast<std::size_t>(count);
    auto const bytes = counter.bytes > device::ArenaSize::most / n ? device::ArenaSize::most : counter.bytes * n;
    total = std::min(device::ArenaSize::most, total + bytes);
  };
  int const kept = std::min(sets.recompute.slots_kept, sets.slots);
  add(kept, [&](auto& counter) { take_slot(c, stages, stage, layout::no_recompute(stages, stage), {}, counter); });
  add(sets.slots - kept, [&](auto& counter) { take_slot(c, stages, stage, sets.recompute, {}, counter); });
  auto const first_layer = stages.layers(stage).begin;
  add(sets.rebuilt, [&](auto& counter) { take_rebuilt(c, first_layer, sets.recompute, {}, counter); });
  return total;
}

template <class P>
std::int64_t Stage<P>::offloaded_bytes(config::Config const& c, layout::StageMap const& stages, int stage,
                                       layout::StageActivations const& sets, bool gradients) {
  device::ArenaSize counter;
  auto const slot = take_slot(c, stages, stage, sets.recompute, {}, counter);
  if (gradients && sets.rebuilt > 0) take_rebuilt(c, stages.layers(stage).begin, sets.recompute, {}, counter);
  return static_cast<std::int64_t>((gradients ? counter.used() : slot.saved_end) - slot.begin);
}

template <class P>
typename Stage<P>::Region Stage<P>::offloaded(int slot, bool gradients) const {
  auto const& s = slots_[at(slot)];
  return {arena_begin_ + s.begin, static_cast<std::int64_t>((gradients ? s.end : s.saved_end) - s.begin)};
}

template <class P>
void Stage<P>::resume(int slot, TokenRows rows, bool gradients) {
  auto& s = slots_[at(slot)];
  s.rows = rows;
  s.rows.positions = s.positions;
  s.rows.documents = s.documents;
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
      vocabulary_elsewhere_(c.divides_vocabulary()),
      owns_gradient_(owns_gradient(stages, stage)),
      narrow_messages_(travels_narrow(c)),
      offloads_(sets.offload_places > 0),
      stays_(offloads_ || c.batch.variable || c.model.moe.on()),
      arena_begin_(arena.take<std::byte>(0).data() - arena.used()),
      tp_(&tp),
      recompute_(sets.recompute),
      none_(layout::no_recompute(stages, stage)),
      forward_{scratch.forward, {}, {}},
      backward_{scratch.backward, {}, {}},
      final_norm_(c) {
  P3D_REQUIRE(recompute_.num_layers() == stages.num_layers(stage), "it is known what each layer recomputes");
  P3D_REQUIRE(tp.sequence == c.parallel.sequence, "buffers and messages agree on who has which rows");
  P3D_REQUIRE(!offloads_ || ((sets.rebuilt == 0 || sets.rebuilt == sets.slots) && recompute_.slots_kept == 0),
              "slots whose microbatches are offloaded are alike");
  auto const rebuild = [&] {
    rebuilt_memory_.push_back(piece_of(arena, [&] {
      rebuilt_.push_back(take_rebuilt(c, stages.layers(stage).begin, recompute_, place(c.model.seq_len), arena));
    }));
  };
  for (int k = 0; k < sets.slots; ++k) {
    slot_memory_.push_back(piece_of(
        arena, [&] { slots_.push_back(take_slot(c, stages, stage, recompute(k), place(c.model.seq_len), arena)); }));
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

  vocab_ = parallel::vocab_shard(c.model.vocab_size, tp);
  if (first_) embed_dropout_ = kernels::make_dropout(c.model.dropout, c.run.seed, "dropout.embed");
}

template <class P>
void Stage<P>::shape(int slot, std::int64_t length) {
  auto& s = slots_[at(slot)];
  if (length == 0) length = config_->model.seq_len;
  if (length == s.length) return;
  P3D_REQUIRE(stays_ && !offloads_ && s.rebuilt < 0, "a slot that is taken anew is free, and its memory its own");
  auto piece = opened(slot_memory_[at(slot)]);
  s = take_slot(*config_, *stages_, stage_, recompute(slot), place(length), piece);
}

template <class P>
typename Stage<P>::ActivationSlot& Stage<P>::begin_action(int slot, Workspace<P>& scratch) {
  auto& s = slots_[at(slot)];
  scratch.shape(s.length);
  return s;
}

template <class P>
typename Stage<P>::RebuiltSet& Stage<P>::take_free_set(ActivationSlot& s, int number) {
  s.rebuilt = number;
  auto& set = rebuilt_[at(number)];
  if (set.length != s.length) {
    auto piece = opened(rebuilt_memory_[at(number)]);
    set = take_rebuilt(*config_, stages_->layers(stage_).begin, recompute_, place(s.length), piece);
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
  if (vocabulary_elsewhere_) return;
  if (first_) copy_tokens(tp_->exec, given.inputs, s.tokens);
  if (last_) copy_tokens(tp_->exec, given.targets, s.targets);
}

template <class P>
void Stage<P>::take_gradient(int slot, View2<S> gradient_of_next) {
  auto& d = slots_[at(slot)].d;
  if (owns_gradient_) {
    Kokkos::deep_copy(tp_->exec, d, gradient_of_next);
  } else {
    d = gradient_of_next;
  }
}

template <class P>
void Stage<P>::embed(StageWeights<P> const& w, ActivationSlot& s, bool training) {
  auto const x = s.x.front();
  auto const rows = own_rows(*tp_, s.rows);
  if (!vocabulary_elsewhere_) {
    auto const sums = tp_->sequence ? forward_.scratch->block.branch : x;
    parallel::vocab_embedding_forward<S>(*tp_, vocab_, s.tokens, w.embedding.value, sums);
    if (tp_->sequence) Kokkos::deep_copy(tp_->exec, x, own_rows(*tp_, sums));
  }
  if (w.positions.value.extent(0) > 0) kernels::position_forward<S>(tp_->exec, rows, w.positions.value, x);
  if (training && embed_dropout_.active()) kernels::dropout_in_place<S>(tp_->exec, rows, embed_dropout_, x);
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
    if (rebuilt) fill_in(saved, rebuilt->blocks[at(l)]);
    fill_in(saved, o.scratch->remade[at(l - begin)]);
  }
}

template <class P>
void Stage<P>::remake(StageWeights<P> const& w, int slot, int begin, int end) {
  auto& s = slots_[at(slot)];
  auto const& r = recompute(slot);
  if (r.input(begin) == KeptInput::shared)
    parallel::gather_shares<S>(*tp_, s.shares[at(begin)], device::flat(backward_.x[at(begin)]));
  for (int l = begin; l + 1 < end; ++l)
    blocks_[at(l)].forward(w.layers[at(l)], s.rows, RoutePass::again, backward_.x[at(l)], backward_.saved[at(l)],
                           backward_.scratch->block, backward_.x[at(l + 1)]);
  auto const last = at(end - 1);
  blocks_[last].remake(w.layers[last], s.rows, backward_.x[last], backward_.saved[last], backward_.scratch->block,
                       r.keeps_sums);
}

template <class P>
void Stage<P>::forward(StageWeights<P> const& w, int slot, bool training) {
  auto& s = begin_action(slot, *forward_.scratch);
  open(forward_, slot, nullptr, true);
  if (first_) embed(w, s, training);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l].forward(w.layers[l], s.rows, training ? RoutePass::training : RoutePass::evaluation, forward_.x[l],
                       forward_.saved[l], forward_.scratch->block, forward_.x[l + 1]);
    if (training && s.shares[l + 1].data() != nullptr)
      parallel::keep_share<S>(*tp_, device::flat(forward_.x[l + 1]), s.shares[l + 1]);
  }
  if (!last_) return;
  final_norm_.forward(tp_->exec, w.final_norm, s.x.back(), s.final_norm);
  if (vocabulary_elsewhere_) return;
  parallel::column_linear_forward<S>(*tp_, whole_head_input(s, *forward_.scratch).wait(), w.head.value,
                                     View1<S const>(), s.logits);
  auto const& scratch = *forward_.scratch;
  parallel::vocab_loss_forward<S>(*tp_, vocab_, s.logits, s.targets, {s.lse, scratch.row_max, scratch.sums},
                                  scratch.loss_sum);
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
    blocks_[i].backward(w.layers[i], s.rows, backward_.x[i], r.layer(l), backward_.saved[i], backward_.scratch->block,
                        s.d);
    if (ready) ready(layer_begin_[i], layer_begin_[i + 1]);
  }
  if (first_) finish_input_gradient(s);
  if (first_) embed_backward(w, s, s.d);
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
  if (last_) head_backward(w, s, loss_scale, false);
  for (int l = r.num_layers(); l-- > 0;) {
    auto const i = at(l);
    if (r.layer(l).full && r.group_end(l) == l + 1) remake(w, slot, r.group_begin(l), l + 1);
    auto& saved = backward_.saved[i];
    blocks_[i].backward_input(w.layers[i], s.rows, backward_.x[i], backward_.x[i + 1], r.layer(l), saved,
                              backward_.scratch->block, s.d);
    if (stays_) {  // back to where it was
      for (auto const& [place, got] :
           {std::pair(&backward_.scratch->block.dup, &saved.up), {&backward_.scratch->block.dqkv, &saved.qkv}}) {
        Kokkos::deep_copy(tp_->exec, *place, *got);
        std::swap(*place, *got);
      }
      continue;
    }
    // These two have changed places with scratch: their owner takes over what it got.
    auto& owner = r.layer(l).full ? rebuilt->blocks[i] : s.blocks[i];
    owner.up = saved.up;
    owner.qkv = saved.qkv;
  }
  if (first_ && vocabulary_elsewhere_) finish_input_gradient(s);  // the ranks of the embedding wait for it
}

template <class P>
void Stage<P>::backward_weight(StageWeights<P> const& w, int slot, Ready const& ready) {
  auto& s = begin_action(slot, *backward_.scratch);
  open(backward_, slot, s.rebuilt < 0 ? nullptr : &rebuilt_[at(s.rebuilt)], false);
  if (last_) {
    if (!vocabulary_elsewhere_) head_backward_weight(w, s, whole_head_input(s, *backward_.scratch));
    if (ready) ready(layer_begin_.back(), end_of_own_);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward_weight(w.layers[l], backward_.x[l + 1], backward_.saved[l], backward_.scratch->block);
    if (ready) ready(layer_begin_[l], layer_begin_[l + 1]);
  }
  if (first_ && !vocabulary_elsewhere_) finish_input_gradient(s);
  if (first_) embed_backward(w, s, s.d);
  if (ready) ready(first_own_, layer_begin_.front());
  if (s.rebuilt < 0) return;
  if (!offloads_) free_rebuilt_.push_back(s.rebuilt);
  s.rebuilt = -1;
}

template <class P>
std::vector<std::vector<std::int64_t>> Stage<P>::take_expert_counts() {
  std::vector<std::vector<std::int64_t>> out;
  for (auto& block : blocks_) out.push_back(block.take_counts());
  return out;
}

template <class P>
parallel::WholeRows<typename P::Storage> Stage<P>::whole_head_input(ActivationSlot const& s,
                                                                    Workspace<P>& scratch) const {
  return parallel::start_gather_rows<S>(*tp_, s.final_norm.y, scratch.block.gathered);
}

template <class P>
void Stage<P>::head_backward(StageWeights<P> const& w, ActivationSlot& s, double loss_scale, bool weights) {
  auto& exec = tp_->exec;
  if (vocabulary_elsewhere_)
    return final_norm_.backward(exec, w.final_norm, s.head_gradient, s.x.back(), s.final_norm,
                                kernels::Store::overwrite, s.d);
  parallel::WholeRows<S> input;
  if (weights) input = whole_head_input(s, *backward_.scratch);
  parallel::vocab_loss_backward<S>(*tp_, vocab_, s.targets, s.lse, static_cast<typename P::Accumulate>(loss_scale),
                                   s.logits);
  auto sum = parallel::column_linear_backward_input<S>(*tp_, s.logits, w.head.value, backward_.scratch->dfinal);
  if (weights) head_backward_weight(w, s, std::move(input));
  sum.wait();
  final_norm_.backward(exec, w.final_norm, own_rows(*tp_, backward_.scratch->dfinal), s.x.back(), s.final_norm,
                       kernels::Store::overwrite, s.d);
}

template <class P>
void Stage<P>::head_backward_weight(StageWeights<P> const& w, ActivationSlot& s, parallel::WholeRows<S> input) {
  parallel::linear_backward_weight<S, typename P::Gradient>(tp_->exec, s.logits, input.wait(), w.head.grad);
}

template <class P>
void Stage<P>::finish_input_gradient(ActivationSlot& s) {
  auto const rows = own_rows(*tp_, s.rows);
  if (embed_dropout_.active()) kernels::dropout_in_place<S>(tp_->exec, rows, embed_dropout_, s.d);
}

template <class P>
void Stage<P>::embed_backward(StageWeights<P> const& w, ActivationSlot& s, View2<S> d) {
  auto& exec = tp_->exec;
  auto const rows = own_rows(*tp_, s.rows);
  parallel::WholeRows<S> whole;
  if (!vocabulary_elsewhere_) whole = parallel::start_gather_rows<S>(*tp_, d, backward_.scratch->block.branch);
  if (w.positions.grad.extent(0) > 0)
    kernels::position_backward<S, typename P::Gradient>(exec, rows, d, w.positions.grad);
  if (!vocabulary_elsewhere_)
    kernels::embedding_backward<S, typename P::Gradient>(exec, s.tokens, whole.wait(), vocab_.begin, w.embedding.grad);
}

#define P3D_INSTANTIATE(P)      \
  template struct Workspace<P>; \
  template class Stage<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
