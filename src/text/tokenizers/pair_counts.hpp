// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts of the pairs of neighbouring tokens in a list of words, kept up to date while pairs are merged.

#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace p3d::text {

/// A word as tokens, and the number of its occurrences.
struct CountedWord {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

/// The counts, and a heap of pairs by count. A count in the heap may be too high after merges; take() corrects it.
class PairCounts {
public:
  explicit PairCounts(std::vector<CountedWord> words);

  struct Pair {
    std::int32_t left = -1, right = -1;
    std::int64_t count = 0;
  };
  /// Takes the pair that occurs most often, among equals the one with the smaller ids, out of the heap. A count of 0:
  /// no pair is left.
  Pair take();
  /// Merges the pair that take() returned last, in the words for which it was listed.
  void merge(Pair const& pair, std::int32_t merged);

private:
  using Key = std::uint64_t;
  static Key key(std::int32_t left, std::int32_t right) {
    return static_cast<Key>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  using Places = std::vector<std::uint32_t>;  ///< numbers of words, ascending
  /// An entry of the heap. A pair may have two: for words in which it was found first, and for those where a merge made
  /// it.
  struct Listed {
    std::int64_t count = 0;
    Key pair = 0;
    Places places;
  };
  /// The order of the heap.
  struct Later {
    bool operator()(Listed const& a, Listed const& b) const {
      return a.count != b.count ? a.count < b.count : a.pair > b.pair;
    }
  };
  /// Counts a pair in a word.
  void add(Key pair, std::int64_t count, std::uint32_t word);
  /// Merges a pair in one word.
  void merge(CountedWord& word, std::uint32_t number, Pair const& pair, std::int32_t merged);
  /// Puts the pairs of new_places_ into the heap.
  void list_new();

  std::vector<CountedWord> words_;
  std::unordered_map<Key, std::int64_t> counts_;
  std::unordered_map<Key, Places> new_places_;
  std::vector<Listed> queue_;  ///< a heap in the order of Later
  Places taken_;               ///< words of the pair that take() returned last
};

}  // namespace p3d::text
