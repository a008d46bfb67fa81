// SPDX-License-Identifier: Apache-2.0
// A tokenizer of tokenizer.json or tiktoken. Text passes through the parts in this order: added tokens that are looked
// for in the raw text, normalizer, added tokens that are looked for in normalized text, pre-tokenizer, byte pair
// encoding of each word. Bytes that are not UTF-8 pass all text steps as U+FFFD; a byte-level model then gets the bytes
// themselves. Example: "a\xFFb" is split as "a\uFFFDb", and its tokens are those of the three bytes.
#include "text/tokenizers/bpe_tokenizer.hpp"

#include "text/tokenizers/utf8.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace p3d::text {

namespace {

/// A tokenizer made of parts.
class BpeTokenizer final : public Tokenizer {
public:
  explicit BpeTokenizer(BpeParts parts) : p_(std::move(parts)), size_(p_.model.vocabulary.size()) {
    std::vector<AddedToken> raw, normalized;
    std::vector<std::string> raw_text, normalized_text;
    for (auto const& t : p_.added) {
      size_ = std::max(size_, t.id + 1);
      added_.emplace(t.content, t.id);
      content_.emplace(t.id, t.content);
      auto const text = t.normalized ? p_.normalizer(t.content) : t.content;
      (t.normalized ? normalized : raw).push_back(t);
      (t.normalized ? normalized_text : raw_text).push_back(text);
      // A token that takes the white space before it takes the line end, too.
      bool const crosses = t.content.find('\n') != std::string::npos ||
                           (t.lstrip && (begins_with_letter(t.content) || begins_with_letter(text)));
      cuts_at_lines_ = cuts_at_lines_ && !crosses;
    }
    raw_ = AddedTokens(std::move(raw), raw_text);
    normalized_ = AddedTokens(std::move(normalized), normalized_text);
    cuts_at_lines_ = cuts_at_lines_ && p_.pre_tokenizer.cuts_at_lines() && p_.normalizer.local();
  }

  std::int64_t vocab_size() const override { return size_; }

  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override {
    if (text.size() > largest_text) {
      base::refuse({.expected = "a text of at most 2 GiB",
                    .found = fmt::format("{} bytes", text.size()),
                    .where = p_.name,
                    .fix = "divide it into documents"});
    }
    if (!raw_.any(special)) return encode_raw(text, true, special, out);
    auto const plain = [&](std::string_view part) { encode_raw(part, part.data() == text.data(), special, out); };
    raw_.split(text, special, plain, [&](std::int32_t id) { out.push_back(id); });
  }

  void decode(std::int32_t token, std::string& out) const override { decode(token, false, out); }

  std::string decode(std::vector<std::int32_t> const& tokens) const override {
    std::string out;
    bool first = true;
    for (auto token : tokens) decode(token, std::exchange(first, false), out);
    p_.decoder.finish(out);
    return out;
  }

  std::int32_t end_of_document() const override { return p_.end_of_document; }

  std::int32_t find(std::string_view token) const override {
    auto const found = added_.find(std::string(token));
    return found != added_.end() ? found->second : p_.model.vocabulary.find(token);
  }

  bool cuts_at_lines() const override { return cuts_at_lines_; }
  std::uint64_t hash() const override { return p_.hash; }

  std::string describe() const override {
    auto const form = p_.normalizer.describe();
    auto text = fmt::format("{}: {}BPE, {} tokens{}", p_.name, p_.model.byte_level ? "byte-level " : "", size_,
                            form.empty() ? "" : ", " + form);
    auto const missing = std::count(p_.model.of_byte.begin(), p_.model.of_byte.end(), -1);
    if (p_.model.byte_level && missing > 0)
      text += fmt::format(", no token for {} of the 256 bytes, which are left out", missing);
    return text;
  }

private:
  static bool begins_with_letter(std::string_view text) {
    return !text.empty() && ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z'));
  }

  static constexpr std::size_t largest_text = std::size_t{1} << 31;

  /// Encodes text between added tokens. Bytes that are not UTF-8 are read as U+FFFD; byte-level tokens get the bytes
  /// themselves.
  void encode_raw(std::string_view text, bool first, bool special, std::vector<std::int32_t>& out) const {
    std::string valid;
    std::vector<Replaced> replaced;
    if (first_invalid(text) != std::string_view::npos) {
      replace_invalid(text, valid, replaced);
      text = valid;
    }
    std::string changed;
    if (!p_.normalizer.empty()) {
      changed = normalize(text, replaced);
      text = changed;
    }
    if (!normalized_.any(special)) return encode_plain(text, 0, first, replaced, out);
    auto const plain = [&](std::string_view part) {
      auto const offset = static_cast<std::size_t>(part.data() - text.data());
      encode_plain(part, offset, first && offset == 0, replaced, out);
    };
    normalized_.split(text, special, plain, [&](std::int32_t id) { out.push_back(id); });
  }

  /// Normalizes a text, and moves the places of `replaced` along. A U+FFFD joins with nothing: the parts between them
  /// are normalized one by one.
  std::string normalize(std::string_view text, std::vector<Replaced>& replaced) const {
    if (replaced.empty() || !p_.normalizer.local()) {
      replaced.clear();
      return p_.normalizer(text);
    }
    std::string out;
    std::size_t at = 0;
    for (auto& r : replaced) {
      out += p_.normalizer(text.substr(at, r.at - at));
      at = r.at + replacement_character.size();
      r.at = out.size();
      out += replacement_character;
    }
    return out += p_.normalizer(text.substr(at));
  }

  /// Encodes text without added tokens. `text` begins at `offset` of the text in which `replaced` counts places.
  void encode_plain(std::string_view text, std::size_t offset, bool first, std::vector<Replaced> const& replaced,
                    std::vector<std::int32_t>& out) const {
    if (!p_.model.byte_level || replaced.empty()) {
      p_.pre_tokenizer.split(text, first, [&](Piece const& piece) { p_.model.encode(piece.text, out); });
      return;
    }
    std::string word;
    auto next = replaced.begin();
    p_.pre_tokenizer.split(text, first, [&](Piece const& piece) {
      auto const begin = piece.offset + static_cast<std::ptrdiff_t>(offset);
      auto const end = begin + static_cast<std::ptrdiff_t>(piece.text.size());
      word.clear();
      std::ptrdiff_t done = begin;
      while (next != replaced.end() && static_cast<std::ptrdiff_t>(next->at) < begin) ++next;
      for (; next != replaced.end() && static_cast<std::ptrdiff_t>(next->at) < end; ++next) {
        auto const at = static_cast<std::ptrdiff_t>(next->at);
        word += piece.text.substr(static_cast<std::size_t>(done - begin), static_cast<std::size_t>(at - done));
        word += next->bytes;
        done = at + static_cast<std::ptrdiff_t>(replacement_character.size());
      }
      word += piece.text.substr(static_cast<std::size_t>(done - begin));
      p_.model.encode(word, out);
    });
  }

  void decode(std::int32_t token, bool first, std::string& out) const {
    if (token < 0 || token >= size_) {
      base::refuse({.expected = fmt::format("a token from 0 to {}", size_ - 1),
                    .found = fmt::format("{}", token),
                    .where = p_.name,
                    .fix = "use the tokenizer that the tokens were made with"});
    }
    auto const& vocabulary = p_.model.vocabulary;
    if (token < vocabulary.size() && vocabulary.has(token))
      p_.decoder.token(vocabulary.text(token), first, out);
    else if (auto const found = content_.find(token); found != content_.end())
      p_.decoder.token(found->second, first, out);
  }

  BpeParts p_;
  std::int32_t size_;
  AddedTokens raw_, normalized_;
  std::unordered_map<std::string, std::int32_t> added_;
  std::unordered_map<std::int32_t, std::string> content_;
  bool cuts_at_lines_ = true;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace p3d::text
