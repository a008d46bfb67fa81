// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/decoder.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/embedding.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::model {

namespace {

/// Hands out pieces of one block of memory, or counts them (`data` null).
template <class S, class A>
struct Pieces {
  S* data = nullptr;
  A* sums = nullptr;
  std::int64_t used = 0, sums_used = 0;
  template <class T>
  View1<T> take(std::int64_t n) {
    if constexpr (std::is_same_v<T, S>) {
      return View1<T>(std::exchange(data, data ? data + n : nullptr), count(used, n));
    } else {
      return View1<T>(std::exchange(sums, sums ? sums + n : nullptr), count(sums_used, n));
    }
  }
  template <class T>
  View2<T> take(std::int64_t rows, std::int64_t cols) {
    return View2<T>(take<T>(rows * cols).data(), rows, cols);
  }
  static std::int64_t count(std::int64_t& sum, std::int64_t n) {
    sum += n;
    return n;
  }
};

void copy_ints(std::vector<int> const& from, View1<int> to) {
  Kokkos::View<int const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const host(from.data(),
                                                                                                  from.size());
  Kokkos::deep_copy(to, host);
}

std::int64_t attention_elements(BlockSizes const& s) {
  kernels::AttentionShape shape;
  shape.rows = {0, 1, s.tokens};
  shape.heads = s.heads;
  return kernels::attention_workspace(shape);
}

/// Where the layers of a pass leave what they compute. Several passes use one place: nothing is kept for a backward.
template <class P, class Source>
void take(Source& source, BlockSizes const& s, BlockActivations<P>& saved, BlockScratch<P>& scratch) {
  saved = take_block<P>(source, s);
  scratch.branch = source.template take<typename P::Storage>(s.tokens, s.hidden);
  scratch.attention = source.template take<typename P::Accumulate>(attention_elements(s));
}

}  // namespace

template <class P>
DecoderScratch<P>::DecoderScratch(config::Config const& c, std::int64_t most_rows)
    : sizes_(block_sizes_of(c, most_rows)),
      most_rows_(most_rows),
      x_("p3d::model::decoded_rows", static_cast<std::size_t>(most_rows * c.model.hidden)),
      numbers_("p3d::model::decoded_numbers", static_cast<std::size_t>(3 * most_rows)) {
  Pieces<S, typename P::Accumulate> counter;
  take<P>(counter, sizes_, saved_, block_);
  memory_ = device::Owned1<S>("p3d::model::decoder_scratch", static_cast<std::size_t>(counter.used));
  sums_ =
      device::Owned1<typename P::Accumulate>("p3d::model::decoder_sums", static_cast<std::size_t>(counter.sums_used));
}

template <class P>
void DecoderScratch<P>::begin(DecodedRows const& given, std::int64_t capacity) {
  auto const n = given.size();
  P3D_REQUIRE(n >= 1 && n <= most_rows_, "a pass has rows, and the scratch has room for them");
  P3D_REQUIRE(given.texts.size() == given.tokens.size() && given.positions.size() == given.tokens.size(),
              "every row has a text and a position");
  sizes_.tokens = sizes_.rows = sizes_.most_rows = n;
  rows_ = {0, given.begin ? 1 : n, given.begin ? n : 1};
  copy_ints(given.tokens, ints(0));
  copy_ints(given.texts, ints(1));
  copy_ints(given.positions, ints(2));
  rows_.positions = ints(2);
  texts_ = {ints(1), given.begin, capacity};
  Pieces<S, typename P::Accumulate> pieces{memory_.data(), sums_.data()};
  take<P>(pieces, sizes_, saved_, block_);
}

template <class P>
std::size_t DecoderScratch<P>::bytes() const {
  return (x_.size() + memory_.size()) * sizeof(S) + sums_.size() * sizeof(typename P::Accumulate) +
         numbers_.size() * sizeof(int);
}

template <class P>
std::size_t Decoder<P>::bytes(config::Config const& c, layout::StageMap const& stages, int stage, std::int64_t texts,
                              std::int64_t capacity) {
  auto const s = block_sizes_of(c, 1);
  return static_cast<std::size_t>(2 * stages.num_layers(stage) * texts * s.kv_heads * capacity * s.head_dim) *
         sizeof(S);
}

template <class P>
Decoder<P>::Decoder(config::Config const& c, layout::StageMap const& stages, int stage, parallel::TensorParallel& tp,
                    DecoderScratch<P>& scratch, std::int64_t texts, std::int64_t capacity)
    : first_(stages.is_first(stage)),
      last_(stages.is_last(stage)),
      tp_(&tp),
      scratch_(&scratch),
      final_norm_(c),
      vocab_(parallel::vocab_shard(c.model.vocab_size, tp)),
      cache_rows_(texts * block_sizes_of(c, 1).kv_heads),
      cache_columns_(capacity * c.model.head_dim()),
      caches_("p3d::model::keys_values", bytes(c, stages, stage, texts, capacity) / sizeof(S)) {
  P3D_REQUIRE(!tp.sequence, "a decoder's rows are whole on every rank");
  auto const range = stages.layers(stage);
  for (auto l = range.begin; l < range.end; ++l) blocks_.emplace_back(c, tp, static_cast<int>(l));
  if (!last_) return;
  picked_ = device::Owned1<S>("p3d::model::decoded_last_rows", static_cast<std::size_t>(texts * c.model.hidden));
  logits_ = device::Owned1<S>("p3d::model::decoded_logits", static_cast<std::size_t>(texts * vocab_.rows));
}

template <class P>
void Decoder<P>::forward(StageWeights<P> const& w) {
  auto const& t = *scratch_;
  auto const x = t.x();
  if (first_) {
    parallel::vocab_embedding_forward<S>(*tp_, vocab_, t.tokens(), w.embedding.value, x);
    if (w.positions.value.extent(0) > 0) kernels::position_forward<S>(tp_->exec, t.rows(), w.positions.value, x);
  }
  auto const one = cache_rows_ * cache_columns_;
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    S* const place = caches_.data() + 2 * static_cast<std::int64_t>(l) * one;
    KeyValueCache<P> const cache{t.texts(), View2<S>(place, cache_rows_, cache_columns_),
                                 View2<S>(place + one, cache_rows_, cache_columns_)};
    blocks_[l].forward_cached(w.layers[l], t.rows(), cache, x, t.saved(), t.block(), x);
  }
}

template <class P>
std::vector<double> Decoder<P>::logits(StageWeights<P> const& w, std::span<int const> rows) {
  P3D_REQUIRE(last_, "only the last stage has logits");
  auto const& t = *scratch_;
  auto const hidden = static_cast<std::int64_t>(t.x().extent(1)), n = static_cast<std::int64_t>(rows.size());
  P3D_REQUIRE(n * hidden <= static_cast<std::int64_t>(picked_.size()), "there are logits of one row of each text");
  View2<S> const picked(picked_.data(), n, hidden), out(logits_.data(), n, vocab_.rows);
  for (std::int64_t i = 0; i < n; ++i) {
    auto const row = rows[static_cast<std::size_t>(i)];
    Kokkos::deep_copy(tp_->exec, device::rows(picked, i, i + 1), device::rows(t.x(), row, row + 1));
  }
  NormActivations<P> norm = t.saved().norm1;
  norm.y = device::rows(norm.y, 0, n);
  final_norm_.forward(tp_->exec, w.final_norm, picked, norm);
  parallel::column_linear_forward<S>(*tp_, norm.y, w.head.value, View1<S const>(), out);
  device::fence(tp_->exec, "p3d::model::logits");
  auto const host = device::host_copy(out);
  std::vector<double> result(static_cast<std::size_t>(n * vocab_.valid_rows));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t v = 0; v < vocab_.valid_rows; ++v)
      result[static_cast<std::size_t>(i * vocab_.valid_rows + v)] = static_cast<double>(host(i, v));
  return result;
}

#define P3D_INSTANTIATE(P)          \
  template class DecoderScratch<P>; \
  template class Decoder<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
