// SPDX-License-Identifier: Apache-2.0
// Applies merges to the symbols of a word, the lowest rank first, among equal ones the leftmost. Scanning all pairs for
// each merge is quickest for short words, which are nearly all, but takes time with the square of the length; a word of
// more than 64 symbols, such as a line of dashes, gets a heap. Both give the same tokens. An example: with the merges
// (l, o) and (lo, w) the word "low" becomes l o w, then lo w, then low.
#include "text/tokenizers/merges.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>

namespace p3d::text {

Merges::Merges(std::size_t pairs)
    : table_(std::bit_ceil(2 * pairs + 2)),
      mask_(table_.size() - 1),
      shift_(64u - static_cast<unsigned>(std::bit_width(mask_))) {}

void Merges::set(std::int32_t left, std::int32_t right, Merge merge) {
  // Open addressing: a pair lies at the place that its hash names, or behind it.
  auto const pair = key(left, right);
  auto at = first(pair);
  while (table_[at].pair != pair && table_[at].pair != empty) at = (at + 1) & mask_;
  if (table_[at].pair == empty) ++size_;
  table_[at] = {pair, merge};
}

namespace {

/// Most symbols of a word that is merged by scanning.
constexpr std::size_t short_word = 64;

/// Merges a short word: for each merge, scans all pairs for the lowest rank.
void merge_short(Merges const& merges, std::vector<std::int32_t>& symbols, std::size_t from) {
  auto* const s = symbols.data() + from;
  std::size_t n = symbols.size() - from;
  std::array<Merges::Merge, short_word> pairs;  // pairs[i] is the merge of s[i] and s[i + 1]
  for (std::size_t i = 0; i + 1 < n; ++i) pairs[i] = merges.find(s[i], s[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == Merges::no_rank) break;
    s[best] = pairs[best].id;
    --n;
    std::copy(s + best + 2, s + n + 1, s + best + 1);
    std::copy(pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1, pairs.begin() + static_cast<std::ptrdiff_t>(n),
              pairs.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) pairs[best - 1] = merges.find(s[best - 1], s[best]);
    if (best + 1 < n) pairs[best] = merges.find(s[best], s[best + 1]);
  }
  symbols.resize(from + n);
}

/// A symbol of a long word in a linked list; symbols keep their places in the word.
struct Node {
  std::uint32_t previous, next;
  std::uint32_t rank;   ///< rank of the pair that begins here; no_rank: there is none, or this symbol is gone
  std::int32_t merged;  ///< id that the pair becomes
};

/// Merges a long word with a heap of pairs.
void merge_long(Merges const& merges, std::vector<std::int32_t>& symbols, std::size_t from) {
  auto* const s = symbols.data() + from;
  auto const n = static_cast<std::uint32_t>(symbols.size() - from);
  constexpr std::uint32_t end = ~std::uint32_t{0};
  std::vector<Node> nodes(n);
  std::vector<std::uint64_t> found;  // rank and place in one number, which is the order of merges
  auto const look = [&](std::uint32_t at) {
    auto& node = nodes[at];
    auto const m = node.next == end ? Merges::Merge{} : merges.find(s[at], s[node.next]);
    node.rank = m.rank;
    node.merged = m.id;
    return m.rank != Merges::no_rank;
  };
  auto const entry = [&](std::uint32_t at) { return static_cast<std::uint64_t>(nodes[at].rank) << 32 | at; };
  for (std::uint32_t i = 0; i < n; ++i) nodes[i] = {i == 0 ? end : i - 1, i + 1 == n ? end : i + 1, 0, 0};
  for (std::uint32_t i = 0; i < n; ++i) {
    if (look(i)) found.push_back(entry(i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                                       std::move(found));
  while (!queue.empty()) {
    auto const at = static_cast<std::uint32_t>(queue.top());
    auto const rank = static_cast<std::uint32_t>(queue.top() >> 32);
    queue.pop();
    auto& node = nodes[at];
    if (node.rank != rank) continue;  // the pair has changed since it was put into the heap
    s[at] = node.merged;
    auto& gone = nodes[node.next];
    gone.rank = Merges::no_rank;
    node.next = gone.next;
    if (node.next != end) nodes[node.next].previous = at;
    if (look(at)) queue.push(entry(at));
    if (node.previous != end && look(node.previous)) queue.push(entry(node.previous));
  }
  std::size_t out = 0;
  for (std::uint32_t i = 0; i != end; i = nodes[i].next) s[out++] = s[i];
  symbols.resize(from + out);
}

}  // namespace

void merge_symbols(Merges const& merges, std::vector<std::int32_t>& symbols, std::size_t from) {
  auto const n = symbols.size() - from;
  if (n < 2) return;
  n <= short_word ? merge_short(merges, symbols, from) : merge_long(merges, symbols, from);
}

}  // namespace p3d::text
