// SPDX-License-Identifier: Apache-2.0
#pragma once
// Orders of samples: the tokens of each training sample of one source, one class for each data.shuffle.

#include <p3d/base/random.hpp>
#include <p3d/data/token_source.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace p3d::data {

/// An order is a pure function of the sample's number; all state that it keeps only makes it faster.
class SampleOrder {
public:
  virtual ~SampleOrder() = default;
  /// Reads the inputs and the targets (one token later) of a sample of the source. With `documents` (which may be
  /// empty) also sets, for each input, the place in the sample where its document begins, as the source knows it, and
  /// -1 as target of the last token of a document. Safe to call from several threads.
  virtual void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
                    std::span<int> documents) const = 0;
};

/// Collects the tokens of a sample piece by piece: as many inputs as there is room for, and one more target.
class SampleTokens {
public:
  /// `documents` as in SampleOrder::read; empty: not wanted.
  SampleTokens(std::span<int> inputs, std::span<int> targets, std::span<int> documents)
      : inputs_(inputs), targets_(targets), documents_(documents) {}
  /// True when all inputs and the last target are there.
  bool full() const { return got_ > inputs_.size(); }
  /// Takes as many tokens of a source from `first` on as are needed, at most `count`. They are a document, or a part of
  /// one.
  void take(TokenSource const& source, std::int64_t first, std::int64_t count);
  /// Takes as many tokens of a source from `first` on as are needed, at most `count`. They may be of several documents.
  void take_documents(TokenSource const& source, std::int64_t first, std::int64_t count);
  /// Sets the targets that are also inputs, and -1 for those that are not to be predicted. Needs full().
  void finish() const;

private:
  std::span<int> inputs_, targets_, documents_;
  std::size_t got_ = 0;
  bool last_target_begins_ = false;  ///< the last target is the first token of a document
};

/// The order of data.shuffle = "windows": windows of seq_len tokens, in a new order every epoch (see Sampler).
std::unique_ptr<SampleOrder> make_window_order(TokenSource const& source, layout::Range tokens, std::int64_t seq_len,
                                               base::RandomKey order, base::RandomKey offset);

/// Samples that are permuted in groups, so that neighbours are separated. Group k of `size` samples, k size to (k + 1)
/// size - 1, has at the place of sample g the sample k size + permute(key, k, g mod size, size) of the stream. Without
/// a key every sample keeps its place.
class SampleGroups {
public:
  /// The largest group.
  static constexpr std::int64_t largest = 65536;
  /// `samples` is the number of samples of an epoch; groups have that size, at most `largest`.
  SampleGroups(std::optional<base::RandomKey> key, std::int64_t samples);
  std::int64_t size() const { return size_; }
  /// The number in the stream of the sample at a place.
  std::int64_t place(std::int64_t sample) const;

private:
  std::optional<base::RandomKey> key_;
  std::int64_t size_;
};

/// Keys of the two permutations. Without a key documents, or samples, keep their places.
struct DocumentKeys {
  std::optional<base::RandomKey> documents, samples;
};

/// The order of data.shuffle = "documents" and "whole_documents" over the first `documents` documents, which hold
/// `tokens` tokens. They are in a new order every epoch, one behind the other without end, cut into windows of seq_len
/// inputs, so that an epoch has every token once; these windows are then in the order of SampleGroups. Epoch e has
/// document permute(keys.documents, e, i, documents) at place i. The order keeps the number of tokens before every 16th
/// place (beyond 2^25 documents: before 2^21 places) of two epochs, as far as samples were read: reading on costs a few
/// reads of the index, going on at a later place a walk over it.
std::unique_ptr<SampleOrder> make_document_order(TokenSource const& source, std::int64_t documents, std::int64_t tokens,
                                                 std::int64_t seq_len, DocumentKeys const& keys);

/// An order whose samples are documents, each of its own length (batch.variable): inputs and targets beyond it are 0
/// and -1.
class DocumentPieces : public SampleOrder {
public:
  /// The number of samples of an epoch.
  virtual std::int64_t samples() const = 0;
  /// The number of inputs of a sample: 1 to seq_len.
  virtual std::int64_t length(std::int64_t sample) const = 0;
  /// The number of inputs of all samples before one. It costs a walk over the index, and over the lengths of a group.
  virtual std::int64_t inputs_before(std::int64_t sample) const = 0;
};

/// The order of batch.variable over the documents `numbers`, in the order of make_document_order. A document of n
/// tokens gives ceil((n - 1) / seq_len) samples in a row, all but the last of seq_len inputs, and none if it has fewer
/// than two tokens; keys.samples then permutes the samples. Costs are those of make_document_order, and a walk over all
/// documents at the start.
std::unique_ptr<DocumentPieces> make_document_pieces(TokenSource const& source, layout::Range numbers,
                                                     std::int64_t seq_len, DocumentKeys const& keys);

/// The order of Megatron-LM's GPTDataset over the first `sequences` sequences, which hold `tokens` tokens, for a run
/// that asks for `samples`. Its three indices lie in a ScratchMemory: 4 bytes for each sequence and epoch, 20 for each
/// sample.
std::unique_ptr<SampleOrder> make_megatron_order(TokenSource const& source, std::int64_t sequences, std::int64_t tokens,
                                                 std::int64_t seq_len, std::uint64_t seed, std::int64_t samples);

}  // namespace p3d::data
