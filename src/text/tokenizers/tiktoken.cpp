// SPDX-License-Identifier: Apache-2.0
// Tokenizers of tiktoken. A file gives the bytes and the rank of each token, and neither merges, nor how text is split,
// nor special tokens. The merges follow from the ranks; the rest belongs to a family, which `pattern` names. Example: a
// line "aGVsbG8= 15339" is the token "hello" of rank 15339, which is also its id.
#include "text/tokenizers/bpe_tokenizer.hpp"
#include "text/tokenizers/patterns.hpp"
#include "text/tokenizers/readers.hpp"
#include "text/tokenizers/refuse.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

namespace p3d::text {

namespace {

/// A line of a file.
struct Ranked {
  std::string bytes;
  std::int32_t rank = 0;
};

/// Decodes base64 with padding (RFC 4648, section 4).
std::optional<std::string> from_base64(std::string_view text) {
  auto const value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  if (text.empty() || text.size() % 4 != 0) return {};
  std::size_t const padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string out;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const pad = i >= text.size() - padding;
    int const v = pad ? 0 : value(text[i]);
    if (v < 0) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(v);
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) out.push_back(static_cast<char>(bits >> shift & 0xFF));
    bits = 0;
  }
  out.resize(out.size() - padding);
  return out;
}

/// Reads the lines of a file.
std::vector<Ranked> read_ranks(std::string const& text, std::string const& path) {
  std::vector<Ranked> out;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    auto const end = std::min(text.find('\n', at), text.size());
    std::string_view words = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line;
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (words.empty()) continue;
    auto const space = words.find(' ');
    auto bytes = from_base64(words.substr(0, space));
    std::int32_t rank = -1;
    auto const number = space == words.npos ? std::string_view() : words.substr(space + 1);
    auto const [rest, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (!bytes || error != std::errc{} || rest != number.data() + number.size() || rank < 0)
      bad_tokenizer("the bytes of a token in base64, a space and its rank", fmt::format("\"{}\"", words.substr(0, 100)),
                    fmt::format("{}:{}", path, line));
    out.push_back({*std::move(bytes), rank});
  }
  if (out.empty()) bad_tokenizer("tokens and their ranks", "an empty file", path);
  return out;
}

/// The tokens that a family adds to its ranks, with their ids.
std::vector<AddedToken> special_tokens(std::string_view family, std::int32_t ranks) {
  std::vector<AddedToken> out;
  auto const add = [&](std::string content, std::int32_t id) {
    out.push_back({.id = id, .content = std::move(content), .special = true});
  };
  if (family == "gpt2") {
    add("<|endoftext|>", ranks);
  } else if (family == "cl100k") {
    auto const end = ranks == 100256 ? 100257 : ranks;  // OpenAI's file has 100256 ranks and leaves one id out
    add("<|endoftext|>", end);
    add("<|fim_prefix|>", end + 1);
    add("<|fim_middle|>", end + 2);
    add("<|fim_suffix|>", end + 3);
    add("<|endofprompt|>", end + 19);
  } else if (family == "o200k") {
    auto const end = ranks == 199998 ? 199999 : ranks;
    add("<|endoftext|>", end);
    add("<|endofprompt|>", end + 19);
  } else if (family == "qwen2") {
    add("<|endoftext|>", ranks);
    add("<|im_start|>", ranks + 1);
    add("<|im_end|>", ranks + 2);
  } else {  // llama3 has 256 special tokens
    std::vector<std::string> names = {"<|begin_of_text|>", "<|end_of_text|>"};
    auto const reserve = [&](int from, int to) {
      for (int i = from; i < to; ++i) names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
    };
    reserve(0, 4);
    names.insert(names.end(), {"<|start_header_id|>", "<|end_header_id|>"});
    reserve(4, 5);
    names.emplace_back("<|eot_id|>");
    reserve(5, 251);
    for (std::size_t i = 0; i < names.size(); ++i) add(names[i], ranks + static_cast<std::int32_t>(i));
  }
  return out;
}

/// Makes the merges: tiktoken merges two neighbours whenever their joint bytes are a token, the lowest rank first.
Merges make_merges(std::vector<Ranked> const& ranks, Vocabulary const& vocabulary) {
  struct Pair {
    std::int32_t left, right, whole;
  };
  std::vector<Pair> pairs;
  for (auto const& token : ranks) {
    std::string_view const bytes = token.bytes;
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      auto const left = vocabulary.find(bytes.substr(0, cut));
      auto const right = left < 0 ? -1 : vocabulary.find(bytes.substr(cut));
      if (right >= 0) pairs.push_back({left, right, token.rank});
    }
  }
  Merges out(pairs.size());
  for (auto const& p : pairs) out.set(p.left, p.right, {static_cast<std::uint32_t>(p.whole), p.whole});
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> read_tiktoken(std::string const& path, std::string const& text, std::string const& pattern) {
  auto const* const family = find_split_pattern(pattern);
  if (family == nullptr) {
    base::refuse({.expected = "how a file of ranks splits text: one of " + split_pattern_names(),
                  .found = pattern.empty() ? "nothing: the file does not say it" : fmt::format("\"{}\"", pattern),
                  .where = path,
                  .fix = "name the family of models that the file belongs to: data.tokenizer_pattern, or --pattern"});
  }
  auto const ranks = read_ranks(text, path);
  std::int32_t last = 0;
  for (auto const& token : ranks) last = std::max(last, token.rank);
  if (last >= std::ssize(ranks) + largest_id_gap)
    bad_tokenizer(fmt::format("ranks of {} tokens", ranks.size()), fmt::format("the rank {}", last), path);
  Vocabulary vocabulary(ranks.size(), static_cast<std::size_t>(last) + 1);
  for (auto const& token : ranks) {
    if (!vocabulary.add(token.rank, token.bytes))
      bad_tokenizer("a rank for each token", "a token or a rank that is there twice",
                    fmt::format("{}: rank {}", path, token.rank));
  }
  auto merges = make_merges(ranks, vocabulary);
  Bpe model{.vocabulary = std::move(vocabulary), .merges = std::move(merges), .byte_level = true, .whole_words = true};
  model.prepare();
  if (std::count(model.of_byte.begin(), model.of_byte.end(), -1) > 0)
    bad_tokenizer("a token for each of the 256 bytes", "some that have none", path);
  auto const n = model.vocabulary.size();
  auto added = special_tokens(family->name, n);
  auto const end = std::string_view(family->name) == "llama3" ? added[1].id : added[0].id;
  return make_bpe_tokenizer({.model = std::move(model),
                             .normalizer = {},
                             .pre_tokenizer = PreTokenizer(Regex(family->text, RegexSyntax::rust, path), family->text),
                             .decoder = {},
                             .added = std::move(added),
                             .end_of_document = end,
                             .name = std::filesystem::path(path).filename().string(),
                             .hash = XXH64(text.data(), text.size(), XXH64(pattern.data(), pattern.size(), 0))});
}

}  // namespace p3d::text
