// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which pairs of tokens occur how often in a list of words, kept up to date while pairs are merged.

#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace p3d::data {

struct CountedWord {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

class PairCounts {
public:
  explicit PairCounts(std::vector<CountedWord> words);

  struct Pair {
    std::int32_t left = -1, right = -1;
    std::int64_t count = 0;
  };
  /// The pair that occurs most often, of equals the one with the smaller ids; it leaves the list of those that can be
  /// taken. A count of 0: there is none.
  Pair take();
  /// Merges the pair that was taken last, in the words for which it was listed.
  void merge(Pair const& pair, std::int32_t merged);

private:
  using Key = std::uint64_t;
  static Key key(std::int32_t left, std::int32_t right) {
    return static_cast<Key>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  using Places = std::vector<std::uint32_t>;  ///< numbers of words, ascending
  /// A pair may be listed twice: for words in which it was found first, and for those where a merge made it.
  struct Listed {
    std::int64_t count = 0;
    Key pair = 0;
    Places places;
  };
  struct Later {
    bool operator()(Listed const& a, Listed const& b) const {
      return a.count != b.count ? a.count < b.count : a.pair > b.pair;
    }
  };
  void add(Key pair, std::int64_t count, std::uint32_t word);
  void merge(CountedWord& word, std::uint32_t number, Pair const& pair, std::int32_t merged);
  void list_new();

  std::vector<CountedWord> words_;
  std::unordered_map<Key, std::int64_t> counts_;
  std::unordered_map<Key, Places> new_places_;
  std::vector<Listed> queue_;  ///< a heap
  Places taken_;
};

}  // namespace p3d::data
