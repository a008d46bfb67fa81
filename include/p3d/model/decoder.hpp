// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline stage that writes text: it keeps the keys and values of what it has read and is given only what is new.
// Forward alone, without activation slots, targets and sequence parallelism; the layers are those of training.

#include <p3d/model/block.hpp>
#include <p3d/model/embedding.hpp>
#include <p3d/model/head.hpp>
#include <p3d/model/weights.hpp>

#include <p3d/device/arena.hpp>
#include <p3d/layout/stages.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace p3d::model {

/// Tokens that a decoder reads in one pass, a row each. Either the newest one of each of several texts, or (`begin`)
/// the beginning of one text.
struct DecodedRows {
  std::vector<int> tokens, texts, positions;
  bool begin = false;
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// Buffers that all decoders of a rank share, for one pass of up to `most_rows` rows.
template <class P>
class DecoderScratch {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  /// `experts` is the group with which layers exchange rows, or null; it must outlive this object.
  DecoderScratch(config::Config const& config, std::int64_t most_rows, parallel::ExpertParallel* experts = nullptr);
  /// Copies the rows' numbers to the device and makes all views for so many rows.
  void begin(device::ExecSpace const& exec, DecodedRows const& rows, std::int64_t capacity);

  /// The rows that a stage reads and leaves, [rows, hidden].
  View2<S> x() const { return x_; }
  View1<int const> tokens() const { return tokens_; }
  kernels::TokenRows const& rows() const { return rows_; }
  kernels::CachedTexts const& texts() const { return texts_; }
  NormActivations<P> const& final_norm() const { return final_norm_; }
  BlockActivations<P>& saved() { return saved_; }
  BlockScratch<P>& block() { return block_; }

private:
  /// Takes the views for `rows` rows. Several layers leave what they compute in one place: nothing is kept for a
  /// backward.
  template <class Source>
  void take(Source& source, std::int64_t rows);

  BlockSizes sizes_;
  parallel::ContextHeads heads_;
  std::int64_t most_rows_;
  parallel::ExpertParallel* experts_;
  std::size_t bytes_ = 0;
  device::Owned1<std::byte> memory_;  ///< memory of the arena of a pass
  View2<S> x_;
  View1<int> tokens_, of_text_, positions_;
  kernels::TokenRows rows_;
  kernels::CachedTexts texts_;
  NormActivations<P> final_norm_;
  BlockActivations<P> saved_;
  BlockScratch<P> block_;
};

/// The layers of one stage, with the keys and values, or the latents, of the texts that it has read.
template <class P>
class Decoder {
public:
  using S = typename P::Storage;
  /// Has room for keys and values of `texts` texts of `capacity` tokens: bytes(). `tp` is without sequence parallelism
  /// and outlives it, as does `scratch`.
  Decoder(config::Config const& config, layout::StageMap const& stages, int stage, parallel::TensorParallel& tp,
          DecoderScratch<P>& scratch, std::int64_t texts, std::int64_t capacity);
  static std::size_t bytes(config::Config const& config, layout::StageMap const& stages, int stage, std::int64_t texts,
                           std::int64_t capacity);

  /// Runs the scratch's rows through the stage: x from the stage before (nothing on the first stage) becomes the
  /// stage's output. Row p of a text needs its rows before p to have been through.
  void forward(StageWeights<P> const& w);
  /// Puts the final norm of some rows, which the output layer reads, into final_rows(their number): on the last stage,
  /// after forward.
  void finish(StageWeights<P> const& w, std::span<int const> rows);
  View2<S> final_rows(std::int64_t rows) const;  ///< [rows, hidden], the same place for all stages of the rank
  /// The logits of final_rows(rows) for the rank's part of the vocabulary, [rows, valid part]. A stage that holds it is
  /// the last one, or, where the vocabulary is divided over the pipeline, the first one of each rank.
  std::vector<double> logits(StageWeights<P> const& w, std::int64_t rows);
  /// Looks up the scratch's tokens in the rank's part of the embedding. Where the vocabulary is divided over the
  /// pipeline, x is to be summed over it before the first stage runs.
  void embed(StageWeights<P> const& w);
  parallel::VocabShard const& vocab() const { return head_.block(); }

private:
  bool first_, last_, has_embedding_;
  parallel::TensorParallel* tp_;
  DecoderScratch<P>* scratch_;
  std::int64_t texts_;
  std::vector<TransformerBlock<P>> blocks_;
  NormLayer<P> final_norm_;
  Embedding<P> embedding_;
  Head<P> head_;
  std::int64_t cache_rows_, key_columns_, value_columns_;  ///< shapes of the caches of a layer
  device::Owned1<S> caches_;                               ///< keys, then values, of layer after layer
  device::Owned1<S> queries_, outputs_;                    ///< KeyValueCache, of as many rows as there are texts
  device::Owned1<S> picked_, logits_;
};

}  // namespace p3d::model
