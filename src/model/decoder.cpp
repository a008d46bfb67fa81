// SPDX-License-Identifier: Apache-2.0
// Generation: the layers of training, run forward on few rows, with the keys and values of earlier tokens in caches.
// All layers write into one set of activations, since nothing is kept for a backward.
#include <p3d/model/decoder.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::model {

template <class P>
template <class Source>
void DecoderScratch<P>::take(Source& source, std::int64_t rows) {
  sizes_.tokens = sizes_.most_tokens = sizes_.rows = sizes_.most_rows = rows;
  sizes_.qkv_elements = rows * sizes_.qkv();
  sizes_.lse_elements = rows * sizes_.heads;
  sizes_.attention = layout::AttentionSizes({.seq_len = rows}, heads_, 1);
  x_ = source.template take<S>(rows, sizes_.hidden);
  final_norm_ = {source.template take<S>(rows, sizes_.hidden), source.template take<A>(rows),
                 source.template take<A>(rows)};
  tokens_ = source.template take<int>(rows);
  of_text_ = source.template take<int>(rows);
  positions_ = source.template take<int>(rows);
  for (auto buffer : layout::list(layout::saved_buffers())) saved_.bind(parallel::take<S>(source, buffer, sizes_));
  for (auto buffer : {Buffer::scratch_branch, Buffer::scratch_qk_sums, Buffer::scratch_kv_both})
    parallel::bind(block_, parallel::take<S>(source, buffer, sizes_));
  if (sizes_.moe.gates_shared) parallel::bind(block_, parallel::take<S>(source, Buffer::scratch_dact, sizes_));
  parallel::take_all<S>(source, sizes_, block_.moe);
  block_.moe.experts = experts_;
  using Attention = parallel::ContextAttention<S>;
  block_.attention = std::make_shared<Attention>(Attention::take(source, sizes_.attention, heads_));
}

template <class P>
DecoderScratch<P>::DecoderScratch(config::Config const& c, std::int64_t most_rows, parallel::ExpertParallel* experts)
    : sizes_(layout::block_sizes_of(c, most_rows, kernels::have_device_form())),
      heads_(layout::context_heads(c, 0)),
      most_rows_(most_rows),
      experts_(experts) {
  device::ArenaSize size;
  take(size, most_rows);
  bytes_ = size.bytes;
  memory_ = device::Owned1<std::byte>("p3d::model::decoder_scratch", bytes_ + device::Arena::alignment);
}

template <class P>
void DecoderScratch<P>::begin(device::ExecSpace const& exec, DecodedRows const& given, std::int64_t capacity) {
  auto const n = given.size();
  P3D_REQUIRE(n >= 1 && n <= most_rows_, "a pass has rows, and the scratch has room for them");
  P3D_REQUIRE(given.texts.size() == given.tokens.size() && given.positions.size() == given.tokens.size(),
              "every row has a text and a position");
  device::Arena arena(bytes_, "p3d::model::decoder_scratch", memory_.data());
  take(arena, n);
  device::copy_from_host<int>(exec, given.tokens, tokens_);
  device::copy_from_host<int>(exec, given.texts, of_text_);
  device::copy_from_host<int>(exec, given.positions, positions_);
  rows_ = {0, given.begin ? 1 : n, given.begin ? n : 1};
  rows_.positions = positions_;
  texts_ = {of_text_, given.begin, capacity};
}

namespace {

/// The sizes of a cache: heads of a rank, and the widths of a key and a value.
struct CacheSizes {
  std::int64_t heads = 0, key = 0, value = 0;
};
CacheSizes cache_of(config::Config const& c) {
  auto const s = layout::block_sizes_of(c, 1);
  if (s.mla.kv_rank > 0) return {1, s.mla.kv_rank + s.mla.rope_dim, 0};  // latents serve all heads
  return {s.kv_heads, s.head_dim, s.value_dim};
}

}  // namespace

template <class P>
std::size_t Decoder<P>::bytes(config::Config const& c, layout::StageMap const& stages, int stage, std::int64_t texts,
                              std::int64_t capacity) {
  auto const cache = cache_of(c);
  return static_cast<std::size_t>(stages.num_layers(stage) * texts * cache.heads * capacity *
                                  (cache.key + cache.value)) *
         sizeof(S);
}

template <class P>
Decoder<P>::Decoder(config::Config const& c, layout::StageMap const& stages, int stage, parallel::TensorParallel& tp,
                    DecoderScratch<P>& scratch, std::int64_t texts, std::int64_t capacity)
    : first_(stages.is_first(stage)),
      last_(stages.is_last(stage)),
      has_embedding_(stages.has_embedding(stage)),
      tp_(&tp),
      scratch_(&scratch),
      texts_(texts),
      final_norm_(c),
      embedding_(c, tp, stages.pipeline_rank(stage)),
      head_(c, tp, stages.pipeline_rank(stage)),
      cache_rows_(texts * cache_of(c).heads),
      key_columns_(capacity * cache_of(c).key),
      value_columns_(capacity * cache_of(c).value),
      caches_("p3d::model::keys_values", bytes(c, stages, stage, texts, capacity) / sizeof(S)) {
  P3D_REQUIRE(!tp.sequence, "a decoder's rows are whole on every rank");
  auto const range = stages.layers(stage);
  for (auto l = range.begin; l < range.end; ++l) blocks_.emplace_back(c, tp, static_cast<int>(l));
  if (last_)
    picked_ = device::Owned1<S>("p3d::model::decoded_last_rows", static_cast<std::size_t>(texts * c.model.hidden));
  if (auto const s = layout::block_sizes_of(c, texts); s.mla.kv_rank > 0) {
    auto const rows = static_cast<std::size_t>(texts * s.heads), latent = static_cast<std::size_t>(s.mla.kv_rank);
    queries_ =
        device::Owned1<S>("p3d::model::decoded_queries", rows * (latent + static_cast<std::size_t>(s.mla.rope_dim)));
    outputs_ = device::Owned1<S>("p3d::model::decoded_outputs", rows * latent);
  }
  bool const with_part =
      !stages.stages_own_vocabulary() && stages.stages_of(stages.pipeline_rank(stage)).front() == stage;
  if (stages.has_head(stage) || with_part)
    logits_ = device::Owned1<S>("p3d::model::decoded_logits", static_cast<std::size_t>(texts * vocab().rows));
}

template <class P>
void Decoder<P>::forward(StageWeights<P> const& w) {
  auto& t = *scratch_;
  auto const x = t.x();
  if (first_) {
    if (has_embedding_) embed(w);
    embedding_.finish(w.positions, t.rows(), false, x);
  }
  auto const n = t.texts().begin ? 0 : t.rows().rows();
  auto const part = [&](device::Owned1<S> const& v) {
    return View2<S>(v.data(), n, static_cast<std::int64_t>(v.size()) / texts_);
  };
  auto const keys = cache_rows_ * key_columns_, both = keys + cache_rows_ * value_columns_;
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    S* const place = caches_.data() + static_cast<std::int64_t>(l) * both;
    KeyValueCache<P> const cache{t.texts(), View2<S>(place, cache_rows_, key_columns_),
                                 View2<S>(place + keys, cache_rows_, value_columns_), part(queries_), part(outputs_)};
    blocks_[l].forward({w.layers[l], t.rows(), RoutePass::decoding, x, t.saved(), t.block(), {}, true, &cache}, x);
  }
}

template <class P>
void Decoder<P>::embed(StageWeights<P> const& w) {
  embedding_.look_up(w.embedding, scratch_->tokens(), scratch_->x(), {});
}

template <class P>
View2<typename P::Storage> Decoder<P>::final_rows(std::int64_t rows) const {
  return device::rows(scratch_->final_norm().y, 0, rows);
}

template <class P>
void Decoder<P>::finish(StageWeights<P> const& w, std::span<int const> rows) {
  P3D_REQUIRE(last_, "only the last stage has a final norm");
  auto& t = *scratch_;
  auto const hidden = static_cast<std::int64_t>(t.x().extent(1)), n = static_cast<std::int64_t>(rows.size());
  P3D_REQUIRE(n * hidden <= static_cast<std::int64_t>(picked_.size()), "there are logits of one row of each text");
  View2<S> const picked(picked_.data(), n, hidden);
  for (std::int64_t i = 0; i < n; ++i) {
    auto const row = rows[static_cast<std::size_t>(i)];
    Kokkos::deep_copy(tp_->exec, device::rows(picked, i, i + 1), device::rows(t.x(), row, row + 1));
  }
  auto norm = t.final_norm();
  norm.y = final_rows(n);
  final_norm_.forward(tp_->exec, w.final_norm, picked, norm);
  head_.scale(norm.y, norm.y);
}

template <class P>
std::vector<double> Decoder<P>::logits(StageWeights<P> const& w, std::int64_t n) {
  P3D_REQUIRE(n * vocab().rows <= static_cast<std::int64_t>(logits_.size()),
              "there are logits of one row of each text");
  View2<S> const out(logits_.data(), n, vocab().rows);
  head_.logits(w.head, final_rows(n), {}, out);
  auto const host = device::copy_to_host("p3d::model::logits", tp_->exec, out);
  std::vector<double> result(static_cast<std::size_t>(n * vocab().valid_rows));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t v = 0; v < vocab().valid_rows; ++v)
      result[static_cast<std::size_t>(i * vocab().valid_rows + v)] = static_cast<double>(host(i, v));
  return result;
}

#define P3D_INSTANTIATE(P)          \
  template class DecoderScratch<P>; \
  template class Decoder<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
