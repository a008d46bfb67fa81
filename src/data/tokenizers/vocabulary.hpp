// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens by id and ids by text, in flat tables: a lookup touches one place of memory, mostly.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

class Vocabulary {
public:
  /// For ids in [0, ids); `entries` of them are expected to be there.
  Vocabulary(std::size_t entries, std::size_t ids);
  /// False: the id, or the text, is there already.
  bool add(std::int32_t id, std::string_view text);
  /// A text that is no word of any input: it has an id, but find() does not know it.
  bool add_unfindable(std::int32_t id, std::string_view text);

  std::int32_t find(std::string_view text) const;  ///< -1: there is none
  bool has(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)].offset != none; }
  std::string_view text(std::int32_t id) const;
  /// The number of ids, used or not.
  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }
  std::size_t entries() const { return entries_; }
  std::size_t longest() const { return longest_; }  ///< bytes

private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Text {
    std::uint32_t offset = none, bytes = 0;
  };
  std::size_t slot(std::string_view text) const;

  std::string bytes_;
  std::vector<Text> texts_;
  std::vector<std::int32_t> table_;  ///< open addressing, linear probing; -1: empty
  std::size_t entries_ = 0, longest_ = 0;
};

}  // namespace p3d::data
