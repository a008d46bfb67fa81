// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens by id and ids by text, in flat tables: a lookup mostly touches one place of memory.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// The vocabulary of a tokenizer.
class Vocabulary {
public:
  /// Makes room for ids in [0, ids); `entries` of them are expected.
  Vocabulary(std::size_t entries, std::size_t ids);
  /// Adds a token. False: the id, or the text, is there already.
  bool add(std::int32_t id, std::string_view text);
  /// Adds a token whose text no input can contain: it has an id, but find() does not know it.
  bool add_unfindable(std::int32_t id, std::string_view text);

  std::int32_t find(std::string_view text) const;  ///< -1: the text is no token
  /// True when the id stands for a token.
  bool has(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)].offset != none; }
  std::string_view text(std::int32_t id) const;
  /// The number of ids, used or not.
  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }
  std::size_t entries() const { return entries_; }
  std::size_t longest() const { return longest_; }  ///< bytes of the longest text that find() knows

private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Text {
    std::uint32_t offset = none, bytes = 0;
  };
  /// The place in table_ of a text, or the empty place where it belongs.
  std::size_t slot(std::string_view text) const;

  std::string bytes_;
  std::vector<Text> texts_;
  std::vector<std::int32_t> table_;  ///< open addressing, linear probing; -1: empty
  std::size_t entries_ = 0, longest_ = 0;
};

}  // namespace p3d::text
