// SPDX-License-Identifier: Apache-2.0
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

constexpr std::int64_t block = 1024;

/// The order of documents in each epoch, and what comes before each of them: counted in tokens, or, given a length, in
/// pieces of at most so many inputs (DocumentPieces).
class DocumentWalk {
public:
  /// A unit: `skip` units into the document that has the place `number` in an epoch.
  struct Place {
    std::int64_t number, skip;
  };

  /// Documents `numbers`, as they come without `order`. `piece` 0: units are tokens.
  DocumentWalk(TokenSource const& source, layout::Range numbers, std::optional<base::RandomKey> order,
               std::int64_t piece)
      : source_(&source), first_(numbers.begin), documents_(numbers.size()), order_(order), piece_(piece) {}

  std::int64_t documents() const { return documents_; }
  layout::Range document(std::int64_t epoch, std::int64_t place) const {
    return source_->document(document_at(epoch, place));
  }
  std::int64_t units(layout::Range document) const {
    if (piece_ == 0) return document.size();
    return document.size() < 2 ? 0 : (document.size() - 2) / piece_ + 1;
  }
  /// Of an epoch.
  std::int64_t count_units() const {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < documents_; ++i) sum += units(source_->document(first_ + i));
    return sum;
  }

  /// Unit `unit` of an epoch that should have `all`.
  Place find(std::int64_t epoch, std::int64_t unit, std::int64_t all) const {
    Place place{};
    {
      std::lock_guard const lock(mutex_);
      auto& begins = walk_of(epoch).begins;
      while (begins.back() <= unit && std::ssize(begins) * block < documents_ + block) walk_on(epoch, begins);
      auto const next = std::upper_bound(begins.begin(), begins.end(), unit);
      place = {(next - begins.begin() - 1) * block, unit - *(next - 1)};
    }
    for (; place.number < documents_; ++place.number) {
      auto const here = units(document(epoch, place.number));
      if (place.skip < here) return place;
      place.skip -= here;
    }
    throw base::Error({.expected = fmt::format("{} {} in the {} documents to read", all,
                                               piece_ == 0 ? "tokens" : "samples", documents_),
                       .found = fmt::format("{}", unit - place.skip),
                       .where = source_->describe(),
                       .fix = "make the index again; p3d data check lists its errors"},
                      base::ExitCode::bad_input);
  }

private:
  /// How far an epoch was walked: before place k * block lie begins[k] units.
  struct Walk {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> begins;
  };

  std::int64_t document_at(std::int64_t epoch, std::int64_t place) const {
    if (!order_) return first_ + place;
    return first_ + static_cast<std::int64_t>(permute(*order_, static_cast<std::uint64_t>(epoch),
                                                      static_cast<std::uint64_t>(place),
                                                      static_cast<std::uint64_t>(documents_)));
  }

  void walk_on(std::int64_t epoch, std::vector<std::int64_t>& begins) const {
    auto const first = (std::ssize(begins) - 1) * block, end = std::min(first + block, documents_);
    // The numbers first: then the reads, each a miss of the caches, overlap.
    std::array<std::int64_t, block> chosen;
    for (auto i = first; i < end; ++i) chosen[static_cast<std::size_t>(i - first)] = document_at(epoch, i);
    auto sum = begins.back();
    for (auto i = first; i < end; ++i) sum += units(source_->document(chosen[static_cast<std::size_t>(i - first)]));
    begins.push_back(sum);
  }

  Walk& walk_of(std::int64_t epoch) const {
    auto& walk = walks_[static_cast<std::size_t>(epoch % 2)];
    if (walk.epoch != epoch) walk = {epoch, {0}};
    return walk;
  }

  TokenSource const* source_;
  std::int64_t first_, documents_;
  std::optional<base::RandomKey> order_;
  std::int64_t piece_;
  mutable std::mutex mutex_;
  mutable std::array<Walk, 2> walks_;
};

class DocumentOrder final : public SampleOrder {
public:
  DocumentOrder(TokenSource const& source, std::int64_t documents, std::int64_t tokens, base::RandomKey order)
      : source_(&source), tokens_(tokens), walk_(source, {0, documents}, order, 0) {
    P3D_REQUIRE(documents > 0 && tokens_ > 0, "there are documents");
  }

  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents) const override {
    auto const first = sample * std::ssize(inputs);
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
  DocumentWalk walk_;
};

class Pieces final : public DocumentPieces {
public:
  Pieces(TokenSource const& source, layout::Range numbers, std::int64_t seq_len, std::optional<base::RandomKey> order)
      : source_(&source), seq_len_(seq_len), walk_(source, numbers, order, seq_len), samples_(walk_.count_units()) {}

  std::int64_t samples() const override { return samples_; }
  std::int64_t length(std::int64_t sample) const override { return inputs_of(sample).size(); }
  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets, std::span<int>) const override {
    auto const tokens = inputs_of(sample);
    auto const n = static_cast<std::size_t>(tokens.size());
    source_->read(tokens.begin, inputs.first(n));
    source_->read(tokens.begin + 1, targets.first(n));
    std::fill(inputs.begin() + tokens.size(), inputs.end(), 0);
    std::fill(targets.begin() + tokens.size(), targets.end(), -1);
  }

private:
  layout::Range inputs_of(std::int64_t sample) const {
    P3D_REQUIRE(samples_ > 0, "there are documents of two tokens");
    auto const epoch = sample / samples_;
    auto const place = walk_.find(epoch, sample % samples_, samples_);
    auto const document = walk_.document(epoch, place.number);
    auto const begin = document.begin + place.skip * seq_len_;
    return {begin, std::min(begin + seq_len_, document.end - 1)};
  }

  TokenSource const* source_;
  std::int64_t seq_len_;
  DocumentWalk walk_;
  std::int64_t samples_;
};

}  // namespace

std::unique_ptr<SampleOrder> make_document_order(TokenSource const& source, std::int64_t documents, std::int64_t tokens,
                                                 base::RandomKey order) {
  return std::make_unique<DocumentOrder>(source, documents, tokens, order);
}

std::unique_ptr<DocumentPieces> make_document_pieces(TokenSource const& source, layout::Range numbers,
                                                     std::int64_t seq_len, std::optional<base::RandomKey> order) {
  return std::make_unique<Pieces>(source, numbers, seq_len, order);
}

}  // namespace p3d::data
