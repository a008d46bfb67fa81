// SPDX-License-Identifier: Apache-2.0
#pragma once
// Documents in memory, for tests of samplers.

#include <p3d/config/config.hpp>
#include <p3d/data/token_source.hpp>

#include <random>
#include <vector>

namespace p3d::test {

/// Token i is i, or `eod` where it is the last of its document and eod is not negative.
class DocumentList final : public data::TokenSource {
public:
  explicit DocumentList(std::vector<std::int64_t> const& sizes, int eod = -1) : eod_(eod) {
    for (auto const n : sizes) begins_.push_back(begins_.back() + n);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      for (auto t = begins_[d]; t < begins_[d + 1]; ++t)
        tokens_.push_back(eod >= 0 && t + 1 == begins_[d + 1] ? eod : static_cast<int>(t));
    }
  }
  std::int64_t size() const override { return begins_.back(); }
  void read(std::int64_t first, std::span<int> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = tokens_.at(static_cast<std::size_t>(first) + i);
  }
  std::uint64_t hash() const override { return 0; }
  std::string describe() const override { return "documents in memory"; }
  std::int64_t documents() const override { return std::ssize(begins_) - 1; }
  layout::Range document(std::int64_t i) const override {
    auto const d = static_cast<std::size_t>(i);
    return {begins_.at(d), begins_.at(d + 1)};
  }
  /// Whether a token is the first of its document.
  bool begins(std::int64_t token) const {
    for (auto const b : begins_) {
      if (b == token) return true;
    }
    return false;
  }

private:
  int eod_;
  std::vector<std::int64_t> begins_{0};
  std::vector<int> tokens_;
};

/// Documents of 1 token, of exactly seq_len, of several windows, and between; at least seq_len + 1 tokens.
inline std::vector<std::int64_t> random_documents(std::mt19937& random, std::int64_t seq_len, bool empty_ones) {
  auto const below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  std::vector<std::int64_t> sizes;
  std::int64_t tokens = 0;
  for (auto const count = 1 + below(8); std::ssize(sizes) < count || tokens < seq_len + 1;) {
    switch (below(6)) {
      case 0: sizes.push_back(1); break;
      case 1: sizes.push_back(seq_len); break;
      case 2: sizes.push_back(2 * seq_len + 1 + below(seq_len + 2)); break;
      case 3: sizes.push_back(empty_ones ? 0 : seq_len + 1); break;
      default: sizes.push_back(1 + below(2 * seq_len));
    }
    tokens += sizes.back();
  }
  return sizes;
}

inline config::Config document_settings(std::int64_t seq_len, config::Shuffle shuffle, std::uint64_t seed) {
  config::Config c;
  c.run.seed = seed;
  c.run.steps = 1;
  c.run.eval_batches = 0;
  c.model.seq_len = seq_len;
  c.data.shuffle = shuffle;
  c.data.split = 0.0;
  c.batch.global = 1;
  return c;
}

}  // namespace p3d::test
