// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cache of the tokens of recent words: a table of fixed size, where a new word replaces an old one.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A cache of 2^15 entries of 64 bytes, 2 MiB, for one thread.
class WordCache {
public:
  /// Limits of an entry: longer words, and words of more tokens, are not kept.
  static constexpr std::size_t longest_word = 22, most_tokens = 10;

  /// One word and its tokens; 64 bytes, a cache line.
  struct Entry {
    std::array<char, longest_word> word;
    std::uint8_t bytes = 0, tokens = 0;  ///< 0 tokens: the entry is empty
    std::array<std::int32_t, most_tokens> ids;
  };
  static_assert(sizeof(Entry) == 64);

  /// The entry of a word, or null.
  Entry const* find(std::string_view word, std::uint64_t hash) const {
    auto const& e = table_[hash & mask];
    return e.tokens > 0 && e.bytes == word.size() && std::memcmp(e.word.data(), word.data(), word.size()) == 0
               ? &e
               : nullptr;
  }
  /// Keeps a word, in place of the word that was there.
  void keep(std::string_view word, std::uint64_t hash, std::span<std::int32_t const> ids) {
    if (word.size() > longest_word || ids.empty() || ids.size() > most_tokens) return;
    auto& e = table_[hash & mask];
    std::memcpy(e.word.data(), word.data(), word.size());
    std::memcpy(e.ids.data(), ids.data(), ids.size_bytes());
    e.bytes = static_cast<std::uint8_t>(word.size());
    e.tokens = static_cast<std::uint8_t>(ids.size());
  }

private:
  static constexpr std::size_t mask = (std::size_t{1} << 15) - 1;
  std::vector<Entry> table_ = std::vector<Entry>(mask + 1);
};

/// A number that no other tokenizer of this process has.
std::uint64_t next_tokenizer_number();
/// The cache of this thread for a tokenizer; it is emptied when the thread used another one last.
WordCache& word_cache(std::uint64_t tokenizer);

}  // namespace p3d::text
