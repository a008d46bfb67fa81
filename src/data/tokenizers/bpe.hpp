// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte pair encoding of one word: its bytes, or its characters, become tokens, which are merged by rank.

#include "data/tokenizers/merges.hpp"
#include "data/tokenizers/vocabulary.hpp"
#include "data/tokenizers/word_cache.hpp"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace p3d::data {

struct Bpe {
  Vocabulary vocabulary;  ///< of bytes where byte_level, else of characters
  Merges merges;
  bool byte_level = true;
  bool whole_words = false;  ///< a word that is a token is that token, whatever the merges say
  bool fuse_unknown = false;
  bool byte_fallback = false;
  std::int32_t unknown = -1;                 ///< of what is in no vocabulary; -1: that is left out
  std::array<std::int32_t, 256> of_byte{};   ///< byte-level: the token of a byte; -1: none
  std::array<std::int32_t, 256> fallback{};  ///< the tokens "<0x00>" to "<0xFF>"; -1: none
  bool cuts_at_space = false;  ///< no token has U+2581, for a space, behind another character: words end before it

  /// Fills what follows from the vocabulary: of_byte, fallback and cuts_at_space.
  void prepare();
  /// Appends the tokens of a word. Any number of threads; each keeps the words it has met.
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

  std::uint64_t number = next_tokenizer_number();

private:
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;
  void start(std::string_view word, std::vector<std::int32_t>& out) const;
};

}  // namespace p3d::data
