// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sampler: it says which tokens a sample is made of, as a pure function of (seed, global sample number). Nothing
// depends on ranks, so every layout reads the same data, and a run can go on from its sample number alone.

#include <p3d/base/random.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace p3d::data {

/// A keyed bijection of [0, count), one for each `epoch`: a four-round Feistel network over the smallest even number of
/// bits (at least 2) that holds count, applied again until the value is in range (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002). Round r maps (L, R) to (R, L ^ (random_block(key, epoch, r << 32 | R).w[0]
/// & mask)). The network is applied fewer than four times on average. Needs 0 <= x < count <= 2^62.
std::uint64_t permute(base::RandomKey key, std::uint64_t epoch, std::uint64_t x, std::uint64_t count);

/// The number of the global sample at place `index` of the global batch of `step` (from 0).
constexpr std::int64_t global_sample(std::int64_t step, std::int64_t index, std::int64_t global_batch) {
  return step * global_batch + index;
}

/// Turns the tokens k places ahead of each input of a sample into those k + 1 places ahead, for k of at least 1.
/// `targets` are those one place ahead; -1 stands for a token that does not count, and for all that would lie behind
/// it: in another document, or behind the sample.
void move_targets(std::span<int const> targets, std::int64_t k, std::span<int> ahead);

/// Cuts the training part (split_source) of a source into samples of seq_len tokens, whose targets are the tokens one
/// later, and deals them in the order of data.shuffle:
///
/// - windows: with n training tokens, T = seq_len, W = (n - 1) / T windows and slack = (n - 1) - W T, sample g is epoch
///   e = g / W, place i = g mod W; its window is permute(random_key(seed, "data.order"), e, i, W) and begins at
///   random_below(random_key(seed, "data.offset"), 0, e, slack + 1) + window * T.
/// - whole_documents: the documents of an epoch in the order permute(random_key(seed, "data.documents"), e, .,
///   documents), one behind the other without end; sample g begins at token g T of that stream. The samples of a batch
///   are neighbours, of few documents.
/// - documents: the same stream; with S = min(W, 65536) and group k = g / S, sample g begins at token
///   (k S + permute(random_key(seed, "data.document_samples"), k, g mod S, S)) T.
/// - megatron: the order of Megatron-LM (src/data/megatron_order.cpp) for run.steps * batch.global samples.
///
/// With batch.variable a sample is a document, or a piece of seq_len inputs of a longer one, and every token but the
/// first of its document is a target once an epoch. Pieces follow each other with data.shuffle = "whole_documents", and
/// are permuted as above with "documents". Documents of fewer than two tokens are left out: they have nothing to
/// predict. Functions that speak of windows then mean such samples.
///
/// Several sources (data.source) have samples of their own, numbered separately; src/data/blend.hpp says from which
/// source a global sample comes. The keys of source k above 0 have ".k" behind their purposes.
class Sampler {
public:
  /// `source` must outlive the sampler. Throws base::Error when the training part (or, if run.eval_batches and
  /// data.split ask for evaluation, the validation part) of a source has fewer than seq_len + 1 tokens, or when
  /// nothing is to be predicted in all that an evaluation reads.
  Sampler(TokenSource const& source, config::Config const& config);
  ~Sampler();
  Sampler(Sampler&&) noexcept;

  std::int64_t seq_len() const { return seq_len_; }
  /// True when samples differ in length, from 1 to seq_len inputs (batch.variable).
  bool varies() const { return variable_; }
  /// The number of inputs of a global sample: seq_len unless varies(). Inputs behind them are 0, their targets -1, and
  /// in `documents` they are a document of their own.
  std::int64_t length(std::int64_t sample) const;
  /// The number of inputs of a place in an evaluation batch, as length().
  std::int64_t eval_length(std::int64_t batch, std::int64_t index) const;
  /// The number of inputs of all samples before this one. With batch.variable it walks over the index, and over the
  /// lengths of up to 65,536 samples of each source.
  std::int64_t tokens_before(std::int64_t sample) const;
  /// The number of windows of the training parts of all sources.
  std::int64_t num_train_windows() const { return train_windows_; }
  /// The number of windows of the validation parts of all sources; 0 without validation.
  std::int64_t num_eval_windows() const { return eval_windows_; }
  /// The validation windows that the first `reads` places of evaluation batches read.
  struct EvalReads {
    std::int64_t windows = 0;  ///< different ones
    bool evenly = true;        ///< each of these is read as often as the others
  };
  EvalReads eval_reads(std::int64_t reads) const;
  /// The epoch of a sample, when there is one source.
  std::int64_t epoch(std::int64_t sample) const { return sample / train_windows_; }
  /// The validation tokens of each source, numbered as in the source as a whole.
  std::vector<layout::Range> const& held_out() const { return held_out_; }

  /// Reads inputs and targets of a global sample (seq_len each), masked. `documents` is empty (not wanted), or gets,
  /// for each input, the place in the sample of the first token of its document: 0 everywhere unless packs().
  void train(std::int64_t sample, std::span<int> inputs, std::span<int> targets, std::span<int> documents = {}) const;
  /// Reads inputs and targets of place `index` in evaluation batch `batch`, masked. It is sample batch * global + index
  /// of the same blend of sources; a source gives the validation window (number mod its windows), in order and without
  /// offset.
  void eval(std::int64_t batch, std::int64_t index, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents = {}) const;

  /// Reads inputs and targets of a sample of the validation part. Samples are numbered over the sources one after the
  /// other: the windows of each, or the samples of batch.variable, in order. There are num_eval_windows().
  void held_out(std::int64_t number, std::span<int> inputs, std::span<int> targets,
                std::span<int> documents = {}) const;
  /// The number of inputs of that validation sample.
  std::int64_t held_out_length(std::int64_t number) const;

  /// Reads inputs and targets of the tokens of any source from `first` on, masked, as for eval(). A source that knows
  /// of no documents counts as one document, divided only by data.eod_token.
  void window(TokenSource const& source, std::int64_t first, std::span<int> inputs, std::span<int> targets,
              std::span<int> documents = {}) const;

  /// True when the documents of a sample are kept apart (data.pack). They end at data.eod_token, which is their last
  /// token, or where the source says if there is no such token; the target of their last token is -1. A document that
  /// goes on from one sample in the next begins anew there, and the pair across the border is predicted: an epoch has
  /// each token but the first of its document as a target once. Exceptions are the shuffles that leave tokens out, as
  /// without data.pack: windows leaves out those outside of the windows (fewer than seq_len, others every epoch),
  /// megatron those at the end of the last epoch.
  bool packs() const { return pack_; }
  /// True when targets of -1 occur, which the loss does not count (data.eod_mask_loss, data.pack, batch.variable).
  bool masks() const { return mask_ || pack_ || variable_; }
  /// Sets the target of an input that is data.eod_token to -1, with data.eod_mask_loss or data.pack.
  void mask(std::span<int const> inputs, std::span<int> targets) const;
  /// True when positions differ from 0, 1, 2 and so on (data.reset_positions, data.pack).
  bool resets_positions() const { return reset_positions_ || pack_; }
  /// Computes the positions of the inputs of one sample: 0 at its start and after each data.eod_token, one more each
  /// token. With packs() give `documents` of train() or eval(): positions then count from the first token of the
  /// document.
  void positions(std::span<int const> inputs, std::span<int> positions) const {
    this->positions(inputs, {}, positions);
  }
  void positions(std::span<int const> inputs, std::span<int const> documents, std::span<int> positions) const;

private:
  /// One source, with its split and its order of samples.
  struct Part;
  /// The blend of several sources.
  struct Blended;
  Part make_part(TokenSource const& source, std::int64_t samples, std::size_t number,
                 config::Config const& config) const;
  /// Throws base::Error when none of the targets that a validation of the run reads counts.
  void require_eval_targets(config::Config const& config) const;
  /// The number of samples before this one that come from each source.
  std::vector<std::int64_t> taken(std::int64_t sample) const;
  /// The source of a global sample; sets `number` to its number there.
  Part const& part_of(std::int64_t sample, std::int64_t& number) const;
  /// The source of a validation sample; turns `number` into its number there.
  Part const& held_out_part_of(std::int64_t& number) const;
  void read_held_out(Part const& part, std::int64_t number, std::span<int> inputs, std::span<int> targets,
                     std::span<int> documents) const;
  Part const& eval_part_of(std::int64_t batch, std::int64_t index, std::int64_t& number) const;
  /// True when the source, not a token, says where documents end.
  bool pack_by_source() const { return pack_ && eod_token_ < 0; }
  /// Fills `documents` by data.eod_token; the documents that a source knows have come with the tokens.
  void find_documents(std::span<int const> inputs, std::span<int> documents) const;

  std::int64_t seq_len_;
  std::int64_t global_batch_;
  std::int64_t train_windows_ = 0;
  std::int64_t eval_windows_ = 0;
  std::vector<layout::Range> held_out_;  ///< tokens of the validation split, one range for each source
  std::vector<Part> parts_;
  std::unique_ptr<Blended> blended_;  ///< null: there is one source
  int eod_token_;
  bool mask_, reset_positions_, pack_, variable_;
};

}  // namespace p3d::data
