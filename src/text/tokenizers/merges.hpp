// SPDX-License-Identifier: Apache-2.0
#pragma once
// The merges of byte pair encoding, and the loop that applies them.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace p3d::text {

/// The pairs of tokens that become one token: its id, and the rank, of which the lowest goes first. It is a hash table
/// with open addressing.
class Merges {
public:
  static constexpr std::uint32_t no_rank = ~std::uint32_t{0};
  struct Merge {
    std::uint32_t rank = no_rank;
    std::int32_t id = -1;
  };

  explicit Merges(std::size_t pairs = 0);
  /// Sets a pair's rank and id; a pair that is there already gets the new ones.
  void set(std::int32_t left, std::int32_t right, Merge merge);
  /// The merge of a pair; no_rank when the pair is not merged.
  Merge find(std::int32_t left, std::int32_t right) const {
    auto const pair = key(left, right);
    for (auto at = first(pair);; at = (at + 1) & mask_) {
      if (table_[at].pair == pair) return table_[at].merge;
      if (table_[at].pair == empty) return {};
    }
  }
  std::size_t size() const { return size_; }

private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct Entry {
    std::uint64_t pair = empty;
    Merge merge;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t first(std::uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15ULL >> shift_) & mask_; }

  std::vector<Entry> table_;
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
  std::size_t size_ = 0;
};

/// Merges symbols[from, end) until no pair can be merged: always the pair of the lowest rank, among equal ones the
/// leftmost. Short words are scanned once for each merge; long ones use a heap, in O(n log n).
void merge_symbols(Merges const& merges, std::vector<std::int32_t>& symbols, std::size_t from);

}  // namespace p3d::text
