// SPDX-License-Identifier: Apache-2.0
// Samples that are cut from documents in a new order (data.shuffle = "documents" and "whole_documents").
//
// The documents of an epoch, one behind the other, are a stream of units: tokens, or the pieces of batch.variable. A
// walk over the index finds the document of a unit; it keeps its counts for every few documents. With "documents" the
// samples of the stream are then permuted within groups, so that a batch has no neighbours. Example: an epoch of three
// documents A (2 windows), B (3), C (1), in the order B A C, may give B1 C0 A1 B0 B2 A0.
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>
#include <p3d/data/sampler.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <vector>

namespace p3d::data {

namespace {

/// Number of documents that are chosen at once: the reads of their sizes, each a miss of the caches, then overlap.
constexpr std::int64_t chosen_at_once = 1024;

/// Documents of a block of the walk: few, so that a look-up is short, but so many that an epoch has no more than 2^21
/// blocks (16 MiB).
std::int64_t block_of(std::int64_t documents) {
  std::int64_t block = 16;
  while (documents >> 21 >= block) block *= 2;
  return block;
}

/// The order of documents in each epoch, and the count of units before each of them: tokens, or, with a piece length,
/// pieces of at most so many inputs (DocumentPieces).
class DocumentWalk {
public:
  /// The place of a unit: `skip` units into the document that has the place `number` in an epoch. For pieces, `inputs`
  /// counts the inputs of the epoch's documents before that one.
  struct Place {
    std::int64_t number = 0, skip = 0, inputs = 0;
  };

  /// `numbers` are the documents; without `order` they come in this order. `piece` 0: units are tokens.
  DocumentWalk(TokenSource const& source, layout::Range numbers, std::optional<base::RandomKey> order,
               std::int64_t piece)
      : source_(&source),
        first_(numbers.begin),
        documents_(numbers.size()),
        block_(block_of(numbers.size())),
        order_(order),
        piece_(piece) {}

  std::int64_t documents() const { return documents_; }
  /// The tokens of the document at a place of an epoch.
  layout::Range document(std::int64_t epoch, std::int64_t place) const {
    return source_->document(document_at(epoch, place));
  }
  /// The units and inputs of all documents, returned in skip and inputs.
  Place count() const {
    Place all;
    for (std::int64_t i = 0; i < documents_; ++i) {
      auto const document = source_->document(first_ + i);
      all.skip += units(document);
      all.inputs += inputs(document);
    }
    return all;
  }

  /// Finds a unit of an epoch. `all` is the number of units that an epoch should have, for the message.
  Place find(std::int64_t epoch, std::int64_t unit, std::int64_t all) const {
    Place place = start(epoch, unit);
    for (; place.number < documents_; ++place.number) {
      auto const document = this->document(epoch, place.number);
      auto const here = units(document);
      if (place.skip < here) {
        remember(epoch, unit, place);
        return place;
      }
      place.skip -= here;
      place.inputs += inputs(document);
    }
    base::refuse({.expected = fmt::format("{} {} in the {} documents to read", all, piece_ == 0 ? "tokens" : "samples",
                                          documents_),
                  .found = fmt::format("{}", unit - place.skip),
                  .where = source_->describe(),
                  .fix = "make the index again; p3d data check lists its errors"});
  }

private:
  /// How far an epoch was walked: begins[k] units, and for pieces inputs[k] inputs, lie before place k * block. `last`
  /// is the document that was found last, and `last_unit` its first unit: the next unit is usually near.
  struct Walk {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> begins, inputs;
    Place last;
    std::int64_t last_unit = 0;
  };

  /// The number of units of a document.
  std::int64_t units(layout::Range document) const {
    if (piece_ == 0) return document.size();
    return document.size() < 2 ? 0 : (document.size() - 2) / piece_ + 1;
  }
  std::int64_t inputs(layout::Range document) const {
    return piece_ == 0 ? 0 : std::max<std::int64_t>(0, document.size() - 1);
  }

  /// The number of the document at a place of an epoch.
  std::int64_t document_at(std::int64_t epoch, std::int64_t place) const {
    if (!order_) return first_ + place;
    return first_ + static_cast<std::int64_t>(permute(*order_, static_cast<std::uint64_t>(epoch),
                                                      static_cast<std::uint64_t>(place),
                                                      static_cast<std::uint64_t>(documents_)));
  }

  /// A place at or before that of a unit; its `skip` counts the units from there to the unit.
  Place start(std::int64_t epoch, std::int64_t unit) const {
    std::lock_guard const lock(mutex_);
    auto& walk = walk_of(epoch);
    while (walk.begins.back() <= unit && std::ssize(walk.begins) * block_ < documents_ + block_) walk_on(walk);
    auto const next = std::upper_bound(walk.begins.begin(), walk.begins.end(), unit);
    auto const k = next - walk.begins.begin() - 1;
    if (walk.last.number >= k * block_ && walk.last_unit <= unit)
      return {walk.last.number, unit - walk.last_unit, walk.last.inputs};
    return {k * block_, unit - *(next - 1), piece_ == 0 ? 0 : walk.inputs[static_cast<std::size_t>(k)]};
  }

  /// Keeps the document that was found last.
  void remember(std::int64_t epoch, std::int64_t unit, Place const& place) const {
    std::lock_guard const lock(mutex_);
    auto& walk = walks_[static_cast<std::size_t>(epoch % 2)];
    if (walk.epoch != epoch) return;  // another thread has begun another epoch
    walk.last = place;
    walk.last_unit = unit - place.skip;
  }

  /// Walks over one more block, or over `chosen_at_once` documents, whichever is more.
  void walk_on(Walk& walk) const {
    auto const first = (std::ssize(walk.begins) - 1) * block_;
    auto const end = std::min(first + std::max(block_, chosen_at_once), documents_);
    auto units_before = walk.begins.back(), inputs_before = piece_ == 0 ? 0 : walk.inputs.back();
    std::array<std::int64_t, chosen_at_once> chosen;
    for (auto i = first; i < end;) {
      auto const n = std::min(chosen_at_once, end - i);
      for (std::int64_t k = 0; k < n; ++k) chosen[static_cast<std::size_t>(k)] = document_at(walk.epoch, i + k);
      for (std::int64_t k = 0; k < n; ++k) {
        auto const document = source_->document(chosen[static_cast<std::size_t>(k)]);
        units_before += units(document);
        inputs_before += inputs(document);
        if (++i % block_ != 0 && i != documents_) continue;
        walk.begins.push_back(units_before);
        if (piece_ > 0) walk.inputs.push_back(inputs_before);
      }
    }
  }

  /// The walk of an epoch. Two epochs are kept, as a sample may reach from one into the next.
  Walk& walk_of(std::int64_t epoch) const {
    auto& walk = walks_[static_cast<std::size_t>(epoch % 2)];
    if (walk.epoch != epoch) walk = {epoch, {0}, {0}, {}, 0};
    return walk;
  }

  TokenSource const* source_;
  std::int64_t first_, documents_, block_;
  std::optional<base::RandomKey> order_;
  std::int64_t piece_;
  mutable std::mutex mutex_;
  mutable std::array<Walk, 2> walks_;
};

/// The order whose samples are windows of seq_len tokens of the stream.
class DocumentOrder final : public SampleOrder {
public:
  DocumentOrder(TokenSource const& source, std::int64_t documents, std::int64_t tokens, DocumentKeys const& keys,
                std::int64_t seq_len)
      : source_(&source),
        tokens_(tokens),
        groups_(keys.samples, (tokens - 1) / seq_len),
        walk_(source, {0, documents}, keys.documents, 0) {
    P3D_REQUIRE(documents > 0 && tokens_ > 0, "there are documents");
  }

  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents) const override {
    auto const first = groups_.place(sample) * std::ssize(inputs);
    auto epoch = first / tokens_;
    auto place = walk_.find(epoch, first % tokens_, tokens_);
    for (SampleTokens sample_tokens(inputs, targets, documents);; place.skip = 0) {
      auto const tokens = walk_.document(epoch, place.number);
      sample_tokens.take(*source_, tokens.begin + place.skip, tokens.size() - place.skip);
      if (sample_tokens.full()) return sample_tokens.finish();
      if (++place.number < walk_.documents()) continue;
      place.number = 0;
      ++epoch;
    }
  }

private:
  TokenSource const* source_;
  std::int64_t tokens_;
  SampleGroups groups_;
  DocumentWalk walk_;
};

/// The order whose samples are documents, or pieces of them (batch.variable).
class Pieces final : public DocumentPieces {
public:
  Pieces(TokenSource const& source, layout::Range numbers, std::int64_t seq_len, DocumentKeys const& keys)
      : source_(&source), seq_len_(seq_len), walk_(source, numbers, keys.documents, seq_len) {
    auto const all = walk_.count();
    samples_ = all.skip;
    inputs_ = all.inputs;
    groups_ = SampleGroups(keys.samples, samples_);
  }

  std::int64_t samples() const override { return samples_; }
  std::int64_t length(std::int64_t sample) const override { return inputs_of(sample).size(); }
  std::int64_t inputs_before(std::int64_t sample) const override {
    if (samples_ == 0) return 0;
    auto const whole = sample - sample % groups_.size();  // a whole group has the same inputs in any order
    auto const epoch = whole / samples_;
    auto const place = walk_.find(epoch, whole % samples_, samples_);
    auto sum = epoch * inputs_ + place.inputs + place.skip * seq_len_;
    for (auto i = whole; i < sample; ++i) sum += length(i);
    return sum;
  }
  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets, std::span<int>) const override {
    auto const tokens = inputs_of(sample);
    auto const n = static_cast<std::size_t>(tokens.size());
    source_->read(tokens.begin, inputs.first(n));
    source_->read(tokens.begin + 1, targets.first(n));
    std::fill(inputs.begin() + tokens.size(), inputs.end(), 0);
    std::fill(targets.begin() + tokens.size(), targets.end(), -1);
  }

private:
  /// The inputs of a sample, as tokens of the source.
  layout::Range inputs_of(std::int64_t sample) const {
    P3D_REQUIRE(samples_ > 0, "there are documents of two tokens");
    auto const at = groups_.place(sample);
    auto const epoch = at / samples_;
    auto const place = walk_.find(epoch, at % samples_, samples_);
    auto const document = walk_.document(epoch, place.number);
    auto const begin = document.begin + place.skip * seq_len_;
    return {begin, std::min(begin + seq_len_, document.end - 1)};
  }

  TokenSource const* source_;
  std::int64_t seq_len_;
  DocumentWalk walk_;
  std::int64_t samples_ = 0, inputs_ = 0;
  SampleGroups groups_{{}, 1};
};

}  // namespace

SampleGroups::SampleGroups(std::optional<base::RandomKey> key, std::int64_t samples)
    : key_(key), size_(key ? std::clamp<std::int64_t>(samples, 1, largest) : 1) {}

std::int64_t SampleGroups::place(std::int64_t sample) const {
  if (!key_) return sample;
  auto const group = sample / size_;
  return group * size_ + static_cast<std::int64_t>(permute(*key_, static_cast<std::uint64_t>(group),
                                                           static_cast<std::uint64_t>(sample % size_),
                                                           static_cast<std::uint64_t>(size_)));
}

std::unique_ptr<SampleOrder> make_document_order(TokenSource const& source, std::int64_t documents, std::int64_t tokens,
                                                 std::int64_t seq_len, DocumentKeys const& keys) {
  return std::make_unique<DocumentOrder>(source, documents, tokens, keys, seq_len);
}

std::unique_ptr<DocumentPieces> make_document_pieces(TokenSource const& source, layout::Range numbers,
                                                     std::int64_t seq_len, DocumentKeys const& keys) {
  return std::make_unique<Pieces>(source, numbers, seq_len, keys);
}

}  // namespace p3d::data
