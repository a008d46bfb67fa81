// SPDX-License-Identifier: Apache-2.0
// Training of byte pair encoding needs the most frequent pair thousands of times. Counting all pairs each time would
// read all words each time. Here a merge touches only the words that hold the pair: the counts of the pairs next to it
// fall, new pairs appear, and a heap keeps the candidates. Example: with the words "h u g" (10 times) and "p u g" (5
// times) the pair "u g" counts 15; merging it takes 10 from "h u", adds "h ug" with 10, and so for "p".
//
// A count in the heap is not lowered when a merge elsewhere destroys some of its pairs. take() finds this out when the
// entry comes to the top, corrects it, and puts it back.
#include "text/tokenizers/pair_counts.hpp"

#include <algorithm>
#include <utility>

namespace p3d::text {

PairCounts::PairCounts(std::vector<CountedWord> words) : words_(std::move(words)) {
  for (std::uint32_t i = 0; i < words_.size(); ++i) {
    auto const& w = words_[i];
    for (std::size_t k = 0; k + 1 < w.symbols.size(); ++k) add(key(w.symbols[k], w.symbols[k + 1]), w.count, i);
  }
  list_new();
}

void PairCounts::add(Key pair, std::int64_t count, std::uint32_t word) {
  counts_[pair] += count;
  auto& places = new_places_[pair];
  // Words come in ascending order, so the last place tells whether this word is listed already.
  if (places.empty() || places.back() != word) places.push_back(word);
}

void PairCounts::list_new() {
  for (auto& [pair, places] : new_places_) {
    auto const count = counts_[pair];
    if (count <= 0) continue;
    queue_.push_back({count, pair, std::move(places)});
    std::push_heap(queue_.begin(), queue_.end(), Later{});
  }
  new_places_.clear();
}

PairCounts::Pair PairCounts::take() {
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later{});
    auto& top = queue_.back();
    auto const count = counts_[top.pair];
    if (top.count != count) {  // the entry was made before some of its pairs were merged away
      if (count <= 0) {
        queue_.pop_back();
        continue;
      }
      top.count = count;
      std::push_heap(queue_.begin(), queue_.end(), Later{});
      continue;
    }
    Pair const pair{static_cast<std::int32_t>(top.pair >> 32), static_cast<std::int32_t>(top.pair), count};
    taken_ = std::move(top.places);
    queue_.pop_back();
    return pair;
  }
  return {};
}

void PairCounts::merge(CountedWord& word, std::uint32_t number, Pair const& pair, std::int32_t merged) {
  // The symbols are moved up in place: `out` never passes `in`.
  auto& s = word.symbols;
  std::size_t out = 0;
  for (std::size_t in = 0; in < s.size();) {
    if (in + 1 < s.size() && s[in] == pair.left && s[in + 1] == pair.right) {
      if (out > 0) {
        counts_[key(s[out - 1], pair.left)] -= word.count;
        add(key(s[out - 1], merged), word.count, number);
      }
      if (in + 2 < s.size()) {
        counts_[key(pair.right, s[in + 2])] -= word.count;
        add(key(merged, s[in + 2]), word.count, number);
      }
      s[out++] = merged;
      in += 2;
    } else {
      s[out++] = s[in++];
    }
  }
  s.resize(out);
}

void PairCounts::merge(Pair const& pair, std::int32_t merged) {
  for (auto number : taken_) merge(words_[number], number, pair, merged);
  taken_.clear();
  list_new();
}

}  // namespace p3d::text
