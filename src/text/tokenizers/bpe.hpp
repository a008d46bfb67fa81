// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte pair encoding of one word: its bytes, or its characters, become tokens, which are then merged by rank.

#include "text/tokenizers/merges.hpp"
#include "text/tokenizers/vocabulary.hpp"
#include "text/tokenizers/word_cache.hpp"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A model of byte pair encoding.
struct Bpe {
  Vocabulary vocabulary;  ///< texts are bytes where byte_level, else characters
  Merges merges;
  bool byte_level = true;
  bool whole_words = false;                  ///< a word that is a token becomes that token, whatever the merges say
  bool fuse_unknown = false;                 ///< neighbouring unknown characters become one token
  bool byte_fallback = false;                ///< unknown characters become tokens of their bytes
  std::int32_t unknown = -1;                 ///< the token for characters in no vocabulary; -1: they are left out
  std::array<std::int32_t, 256> of_byte{};   ///< byte_level: the token of each byte; -1: none
  std::array<std::int32_t, 256> fallback{};  ///< the tokens "<0x00>" to "<0xFF>"; -1: none
  /// True when no token has U+2581, which stands for a space, behind another character: words can be cut before it.
  bool cuts_at_space = false;

  /// Computes what follows from the vocabulary: of_byte, fallback and cuts_at_space.
  void prepare();
  /// Appends the tokens of a word. Any number of threads may call it; each keeps the tokens of recent words.
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

  /// Names this model in the threads' caches.
  std::uint64_t number = next_tokenizer_number();

private:
  /// Encodes a word that is not to be cut any more.
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;
  /// Appends the tokens of a word before any merge.
  void start(std::string_view word, std::vector<std::int32_t>& out) const;
};

}  // namespace p3d::text
