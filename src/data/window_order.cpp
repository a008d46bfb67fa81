// SPDX-License-Identifier: Apache-2.0
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>
#include <p3d/data/sampler.hpp>

#include <algorithm>

namespace p3d::data {

std::uint64_t permute(base::RandomKey key, std::uint64_t epoch, std::uint64_t x, std::uint64_t count) {
  P3D_REQUIRE(x < count && count <= (std::uint64_t{1} << 62), "the permuted number is in range");
  unsigned bits = 2;
  while ((std::uint64_t{1} << bits) < count) bits += 2;
  unsigned const half = bits / 2;
  std::uint64_t const mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      auto const mixed = left ^ (base::random_block(key, epoch, (round << 32) | right).w[0] & mask);
      left = right;
      right = mixed;
    }
    x = (left << half) | right;
  } while (x >= count);
  return x;
}

void SampleTokens::take(TokenSource const& source, std::int64_t first, std::int64_t count) {
  // The last token of a sample is a target only, as all inputs but the first are the targets of the ones before them:
  // seq_len + 1 tokens are read, in pieces that need not lie together.
  auto const wanted = static_cast<std::int64_t>(inputs_.size() - std::min(got_, inputs_.size()));
  auto const n = std::min(count, wanted);
  source.read(first, inputs_.subspan(got_, static_cast<std::size_t>(n)));
  if (!documents_.empty()) {
    auto const here = documents_.subspan(got_, static_cast<std::size_t>(n));
    std::fill(here.begin(), here.end(), static_cast<int>(got_));
  }
  got_ += static_cast<std::size_t>(n);
  if (n == count || full()) return;
  source.read(first + n, targets_.last(1));
  last_target_begins_ = n == 0;
  ++got_;
}

void SampleTokens::take_documents(TokenSource const& source, std::int64_t first, std::int64_t count) {
  if (documents_.empty()) return take(source, first, count);
  for (auto const end = first + count; first < end && !full();) {
    auto const next = std::min(end, source.document_with(first).end);
    take(source, first, next - first);
    first = next;
  }
}

void SampleTokens::finish() const {
  P3D_REQUIRE(full(), "the sample is complete");
  std::copy(inputs_.begin() + 1, inputs_.end(), targets_.begin());
  if (documents_.empty()) return;
  // A target that begins another document is not to be predicted from the end of this one.
  for (std::size_t i = 1; i < inputs_.size(); ++i) {
    if (documents_[i] != documents_[i - 1]) targets_[i - 1] = -1;
  }
  if (last_target_begins_) targets_.back() = -1;
}

namespace {

/// The order of data.shuffle = "windows".
class WindowOrder final : public SampleOrder {
public:
  WindowOrder(TokenSource const& source, layout::Range tokens, std::int64_t seq_len, base::RandomKey order,
              base::RandomKey offset)
      : source_(&source),
        begin_(tokens.begin),
        seq_len_(seq_len),
        windows_((tokens.size() - 1) / seq_len),
        slack_(tokens.size() - 1 - windows_ * seq_len),
        order_(order),
        offset_(offset) {}

  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents) const override {
    // Each epoch shuffles the windows anew, and moves all of them by a random offset into the tokens that are left
    // over: so each epoch cuts the text in other places.
    auto const count = static_cast<std::uint64_t>(windows_), number = static_cast<std::uint64_t>(sample);
    auto const chosen = permute(order_, number / count, number % count, count);
    auto const offset = base::random_below(offset_, 0, number / count, static_cast<std::uint64_t>(slack_) + 1);
    SampleTokens tokens(inputs, targets, documents);
    auto const first = begin_ + static_cast<std::int64_t>(offset) + static_cast<std::int64_t>(chosen) * seq_len_;
    tokens.take_documents(*source_, first, seq_len_ + 1);
    tokens.finish();
  }

private:
  TokenSource const* source_;
  std::int64_t begin_, seq_len_, windows_, slack_;
  base::RandomKey order_, offset_;
};

}  // namespace

std::unique_ptr<SampleOrder> make_window_order(TokenSource const& source, layout::Range tokens, std::int64_t seq_len,
                                               base::RandomKey order, base::RandomKey offset) {
  return std::make_unique<WindowOrder>(source, tokens, seq_len, order, offset);
}

}  // namespace p3d::data
