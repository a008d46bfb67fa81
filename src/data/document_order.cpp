// SPDX-License-Identifier: Apache-2.0
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>
#include <p3d/data/sampler.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

namespace p3d::data {

namespace {

constexpr std::int64_t block = 1024;

class DocumentOrder final : public SampleOrder {
public:
  DocumentOrder(TokenSource const& source, std::int64_t documents, std::int64_t tokens, base::RandomKey order)
      : source_(&source), documents_(documents), tokens_(tokens), order_(order) {
    P3D_REQUIRE(documents_ > 0 && tokens_ > 0, "there are documents");
  }

  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents) const override {
    auto const first = sample * std::ssize(inputs);
    auto epoch = first / tokens_;
    auto place = find(epoch, first % tokens_);
    for (SampleTokens sample_tokens(inputs, targets, documents);; place.skip = 0) {
      auto const tokens = document(epoch, place.number);
      sample_tokens.take(*source_, tokens.begin + place.skip, tokens.size() - place.skip);
      if (sample_tokens.full()) return sample_tokens.finish();
      if (++place.number < documents_) continue;
      place.number = 0;
      ++epoch;
    }
  }

private:
  /// A token: `skip` tokens into the document that has the place `number` in an epoch.
  struct Place {
    std::int64_t number, skip;
  };
  /// How far an epoch was walked: before place k * block lie begins[k] tokens.
  struct Walk {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> begins;
  };

  std::int64_t document_at(std::int64_t epoch, std::int64_t place) const {
    return static_cast<std::int64_t>(permute(order_, static_cast<std::uint64_t>(epoch),
                                             static_cast<std::uint64_t>(place),
                                             static_cast<std::uint64_t>(documents_)));
  }
  layout::Range document(std::int64_t epoch, std::int64_t place) const {
    return source_->document(document_at(epoch, place));
  }

  Place find(std::int64_t epoch, std::int64_t token) const {
    Place place{};
    {
      std::lock_guard const lock(mutex_);
      auto& begins = walk_of(epoch).begins;
      while (begins.back() <= token && std::ssize(begins) * block < documents_ + block) walk_on(epoch, begins);
      auto const next = std::upper_bound(begins.begin(), begins.end(), token);
      place = {(next - begins.begin() - 1) * block, token - *(next - 1)};
    }
    for (; place.number < documents_; ++place.number) {
      auto const size = document(epoch, place.number).size();
      if (place.skip < size) return place;
      place.skip -= size;
    }
    throw base::Error({.expected = fmt::format("{} tokens in the {} documents to train on", tokens_, documents_),
                       .found = fmt::format("{}", token - place.skip),
                       .where = source_->describe(),
                       .fix = "make the index again; p3d data check lists its errors"},
                      base::ExitCode::bad_input);
  }

  void walk_on(std::int64_t epoch, std::vector<std::int64_t>& begins) const {
    auto const first = (std::ssize(begins) - 1) * block, end = std::min(first + block, documents_);
    // The numbers first: then the reads, each a miss of the caches, overlap.
    std::array<std::int64_t, block> chosen;
    for (auto i = first; i < end; ++i) chosen[static_cast<std::size_t>(i - first)] = document_at(epoch, i);
    auto sum = begins.back();
    for (auto i = first; i < end; ++i) sum += source_->document(chosen[static_cast<std::size_t>(i - first)]).size();
    begins.push_back(sum);
  }

  Walk& walk_of(std::int64_t epoch) const {
    auto& walk = walks_[static_cast<std::size_t>(epoch % 2)];
    if (walk.epoch != epoch) walk = {epoch, {0}};
    return walk;
  }

  TokenSource const* source_;
  std::int64_t documents_, tokens_;
  base::RandomKey order_;
  mutable std::mutex mutex_;
  mutable std::array<Walk, 2> walks_;
};

}  // namespace

std::unique_ptr<SampleOrder> make_document_order(TokenSource const& source, std::int64_t documents, std::int64_t tokens,
                                                 base::RandomKey order) {
  return std::make_unique<DocumentOrder>(source, documents, tokens, order);
}

}  // namespace p3d::data
