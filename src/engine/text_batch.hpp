// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts that grow: which tokens the model has to read next. Plain integers.

#include <p3d/model/decoder.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace p3d::engine {

/// A text and how much of it lies in the caches, in a window of the newest `capacity` tokens at most. `original` above
/// 0: a window of more tokens than that turns by other frequencies (longrope), so it is read once more when it gets
/// there.
class GrowingText {
public:
  GrowingText(std::vector<int> prompt, std::int64_t capacity, std::int64_t original = 0)
      : capacity_(capacity), original_(original), tokens_(std::move(prompt)) {
    begin_ = std::max<std::int64_t>(0, length() - capacity_);
  }

  bool done = false;

  void add(int token) {
    tokens_.push_back(token);
    if (original_ > 0 && length() - begin_ == original_ + 1) read_ = 0;
    if (length() - begin_ <= capacity_) return;
    begin_ = length() - std::max<std::int64_t>(1, capacity_ / 2);  // the older half is forgotten
    read_ = 0;
  }
  /// Whether the caches hold all of the window but its newest token.
  bool continues() const { return read_ > 0; }
  /// Adds what the model has not read yet to `rows`, for the place of the caches that the text has. It counts as read.
  void read(int place, model::DecodedRows& rows) {
    for (auto p = read_; begin_ + p < length(); ++p) {
      rows.tokens.push_back(tokens_[static_cast<std::size_t>(begin_ + p)]);
      rows.texts.push_back(place);
      rows.positions.push_back(static_cast<int>(p));
    }
    read_ = length() - begin_;
  }

private:
  std::int64_t length() const { return static_cast<std::int64_t>(tokens_.size()); }

  std::int64_t capacity_, original_;
  std::int64_t begin_ = 0, read_ = 0;  ///< first token of the window; how many of its tokens were read
  std::vector<int> tokens_;
};

}  // namespace p3d::engine
