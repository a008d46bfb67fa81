// SPDX-License-Identifier: Apache-2.0
// Tokenizers of SentencePiece, by its library. The library encodes whole texts and keeps nothing of them; for BPE
// models a text can be cut at single spaces, and the tokens of recent words come from a cache. Example: "the cat" is
// encoded as "the" and "cat", since the library puts a space before every text.
#include "text/tokenizers/readers.hpp"
#include "text/tokenizers/refuse.hpp"

#include <p3d/base/error.hpp>

#if P3D_SENTENCEPIECE

#include "text/tokenizers/added_tokens.hpp"
#include "text/tokenizers/sentencepiece_options.hpp"
#include "text/tokenizers/word_cache.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <utility>

namespace p3d::text {

namespace {

namespace sp = sentencepiece;

/// A model of the library.
class SentencePiece final : public Tokenizer {
public:
  SentencePiece(std::string const& path, std::string const& text)
      : name_(std::filesystem::path(path).filename().string()) {
    auto const status = model_.LoadFromSerializedProto(text);
    if (!status.ok()) bad_tokenizer("a model of SentencePiece", status.ToString(), path);
    if (model_.GetPieceSize() < 1) bad_tokenizer("a model of SentencePiece", "no piece in it", path);
    hash_ = XXH64(text.data(), text.size(), 0);
    std::vector<AddedToken> special;
    std::vector<std::string> texts;
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      if (!model_.IsControl(id)) continue;
      texts.push_back(model_.IdToPiece(id));
      special.push_back({.id = id, .content = texts.back(), .special = true});
    }
    special_ = AddedTokens(std::move(special), texts);
    cuts_ = can_cut(sentencepiece_options(text));
  }

  std::int64_t vocab_size() const override { return model_.GetPieceSize(); }

  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override {
    special_.split(
        text, special, [&](std::string_view part) { encode_plain(part, out); },
        [&](std::int32_t id) { out.push_back(id); });
  }

  void decode(std::int32_t token, std::string& out) const override {
    check(token);
    if (model_.IsControl(token)) return;
    auto const& piece = model_.IdToPiece(token);
    if (model_.IsByte(token)) {
      out.push_back(static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      return;
    }
    if (model_.IsUnknown(token)) {
      out += " \xE2\x81\x87 ";  // the library prints it so
      return;
    }
    for (std::size_t at = 0; at < piece.size();) {
      bool const is_space = std::string_view(piece).substr(at).starts_with(space);
      out.push_back(is_space ? ' ' : piece[at]);
      at += is_space ? space.size() : 1;
    }
  }

  std::string decode(std::vector<std::int32_t> const& tokens) const override {
    for (auto token : tokens) check(token);
    std::string out;
    auto const status = model_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &out);
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return out;
  }

  std::int32_t end_of_document() const override { return model_.eos_id(); }

  std::int32_t find(std::string_view token) const override {
    auto const id = model_.PieceToId(std::string(token));
    return model_.IdToPiece(id) == token ? id : -1;
  }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override {
    return fmt::format("{}: SentencePiece, {} tokens", name_, model_.GetPieceSize());
  }

private:
  void check(std::int32_t token) const {
    if (token >= 0 && token < model_.GetPieceSize()) return;
    base::refuse({.expected = fmt::format("a token from 0 to {}", model_.GetPieceSize() - 1),
                  .found = fmt::format("{}", token),
                  .where = name_,
                  .fix = "use the tokenizer that the tokens were made with"});
  }

  /// True when text may be cut at a space between two words of ASCII, where the library's own space in front of every
  /// text then takes the place of that space. It may when no piece holds a space behind another character: merges look
  /// at nothing else, and known normalizations leave ASCII as it is. A Unigram model adds up the whole text, so its
  /// sums would differ in their last bits: it is not cut.
  bool can_cut(SentencePieceOptions const& o) const {
    bool const known = o.normalization == "identity" || o.normalization == "nfkc" || o.normalization == "nmt_nfkc";
    if (!o.bpe || !o.add_dummy_prefix || !o.escape_whitespaces || o.whitespace_as_suffix || !known) return false;
    if (find(space) < 0) return false;
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      std::string_view piece = model_.IdToPiece(id);
      while (piece.starts_with(space)) piece.remove_prefix(space.size());
      if (piece.find(space) != piece.npos || piece.find(' ') != piece.npos) return false;
    }
    return true;
  }

  /// The next single space between two printable characters of ASCII, or npos.
  static std::size_t next_cut(std::string_view text, std::size_t from) {
    auto const plain = [](char c) { return c > 0x20 && c < 0x7F; };
    for (auto at = text.find(' ', from); at != text.npos; at = text.find(' ', at + 1)) {
      if (at > from && at + 1 < text.size() && plain(text[at - 1]) && plain(text[at + 1])) return at;
    }
    return text.npos;
  }

  /// Encodes text without special tokens, word by word where the model allows it.
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
    if (!cuts_) return encode_whole(text, out);
    auto& cache = word_cache(number_);
    for (std::size_t at = 0; at < text.size();) {
      auto const end = std::min(next_cut(text, at), text.size());
      auto const word = text.substr(at, end - at);
      at = end + (end < text.size() ? 1 : 0);
      bool const kept = word.size() <= WordCache::longest_word;
      auto const hash = kept ? XXH3_64bits(word.data(), word.size()) : 0;
      if (auto const* const found = kept ? cache.find(word, hash) : nullptr) {
        out.insert(out.end(), found->ids.begin(), found->ids.begin() + found->tokens);
        continue;
      }
      auto const from = out.size();
      encode_whole(word, out);
      if (kept) cache.keep(word, hash, std::span(out).subspan(from));
    }
  }

  void encode_whole(std::string_view text, std::vector<std::int32_t>& out) const {
    std::vector<int> ids;
    auto const status = model_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) {
      base::refuse({.expected = "a text that SentencePiece takes",
                    .found = status.ToString(),
                    .where = name_,
                    .fix = "divide it into documents"});
    }
    out.insert(out.end(), ids.begin(), ids.end());
  }

  static constexpr std::string_view space = "\xE2\x96\x81";
  std::string name_;
  bool cuts_ = false;
  std::uint64_t number_ = next_tokenizer_number();
  sp::SentencePieceProcessor model_;
  AddedTokens special_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const& text) {
  return std::make_unique<SentencePiece>(path, text);
}

}  // namespace p3d::text

#else

namespace p3d::text {

std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const&) {
  base::refuse({.expected = "a tokenizer that this p3d can read",
                .found = "a model of SentencePiece, and a p3d that was built without that library",
                .where = path,
                .fix = "install libsentencepiece-dev (Debian) or sentencepiece (Spack), and build p3d again"});
}

}  // namespace p3d::text

#endif
