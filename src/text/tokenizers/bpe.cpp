// SPDX-License-Identifier: Apache-2.0
// A word becomes symbols, one for each byte or character, and merges are applied by rank. Words repeat all the time, so
// each thread keeps the tokens of recent ones.
//
// Vocabularies of SentencePiece cut no words: a whole text would be one "word", and merging it is slow. But where no
// token has a space (U+2581) inside, no merge can cross one, and the text may be cut before each space without another
// result. prepare() finds this out by a look at every token.
#include "text/tokenizers/bpe.hpp"

#include "text/tokenizers/utf8.hpp"
#include "text/tokenizers/word_cache.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <span>

namespace p3d::text {

namespace {

// The character U+2581, which stands for a space.
constexpr std::string_view metaspace = "\xE2\x96\x81";

/// The place of the first metaspace, from `from` on, that stands behind another character.
std::size_t next_cut(std::string_view text, std::size_t from) {
  for (auto at = text.find(metaspace, from); at != text.npos; at = text.find(metaspace, at + metaspace.size())) {
    if (at > from && !text.substr(from, at - from).ends_with(metaspace)) return at;
  }
  return text.npos;
}

}  // namespace

void Bpe::prepare() {
  for (unsigned b = 0; b < 256; ++b) {
    char const byte = static_cast<char>(b);
    of_byte[b] = vocabulary.find({&byte, 1});
    fallback[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
  }
  cuts_at_space = !byte_level && !whole_words && vocabulary.find(metaspace) >= 0;
  for (std::int32_t id = 0; cuts_at_space && id < vocabulary.size(); ++id)
    cuts_at_space = next_cut(vocabulary.text(id), 0) == std::string_view::npos;
}

void Bpe::start(std::string_view word, std::vector<std::int32_t>& out) const {
  std::int32_t waiting = -1;  // an unknown character that may be fused with the next one
  auto const miss = [&] {
    if (unknown < 0) return;
    if (waiting >= 0 && !fuse_unknown) out.push_back(waiting);
    waiting = unknown;
  };
  auto const hit = [&](std::int32_t id) {
    if (waiting >= 0) out.push_back(waiting);
    waiting = -1;
    out.push_back(id);
  };
  if (byte_level) {
    for (char const c : word) {
      auto const id = of_byte[static_cast<unsigned char>(c)];
      id >= 0 ? hit(id) : miss();
    }
  } else {
    for (std::size_t at = 0; at < word.size();) {
      auto const character = word.substr(at, utf8_at(word, at).bytes);
      at += character.size();
      auto const id = vocabulary.find(character);
      if (id >= 0) {
        hit(id);
        continue;
      }
      bool bytes = byte_fallback;
      for (char const c : character) bytes = bytes && fallback[static_cast<unsigned char>(c)] >= 0;
      if (!bytes) {
        miss();
        continue;
      }
      // Tokens of bytes do not end a run of unknown characters: the tokenizers that the files are made for behave so.
      for (char const c : character) out.push_back(fallback[static_cast<unsigned char>(c)]);
    }
  }
  if (waiting >= 0) out.push_back(waiting);
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& out) const {
  if (!cuts_at_space) return encode_word(word, out);
  for (std::size_t at = 0; at < word.size();) {
    auto const end = std::min(next_cut(word, at), word.size());
    encode_word(word.substr(at, end - at), out);
    at = end;
  }
}

void Bpe::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  auto& cache = word_cache(number);
  bool const kept = word.size() <= WordCache::longest_word;
  std::uint64_t hash = 0;
  if (kept) {
    hash = XXH3_64bits(word.data(), word.size());
    if (auto const* const found = cache.find(word, hash)) {
      out.insert(out.end(), found->ids.begin(), found->ids.begin() + found->tokens);
      return;
    }
  }
  // Some tokenizers ask the vocabulary first (ignore_merges): a word that is a token needs no merges.
  if (whole_words) {
    if (auto const id = vocabulary.find(word); id >= 0) {
      out.push_back(id);
      if (kept) cache.keep(word, hash, {&id, 1});
      return;
    }
  }
  auto const from = out.size();
  start(word, out);
  merge_symbols(merges, out, from);
  if (kept) cache.keep(word, hash, std::span(out).subspan(from));
}

}  // namespace p3d::text
