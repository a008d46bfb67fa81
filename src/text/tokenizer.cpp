// SPDX-License-Identifier: Apache-2.0
// Chooses the reader of a tokenizer's file by the ending of its name.
#include <p3d/text/tokenizer.hpp>

#include "text/byte_tokenizer.hpp"
#include "text/tokenizers/patterns.hpp"
#include "text/tokenizers/readers.hpp"
#include "text/tokenizers/refuse.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

namespace p3d::text {

namespace {

using Reader = std::unique_ptr<Tokenizer> (*)(std::string const& path, std::string const& text,
                                              std::string const& pattern, std::optional<std::int32_t> end);

/// The reader for a file of this name. Throws for a name of no known kind.
Reader reader_of(std::string const& name, std::string const& pattern) {
  if (!pattern.empty() && !name.ends_with(".tiktoken")) {
    base::refuse({.expected = "a pattern only for a file of ranks, which does not say how text is split",
                  .found = fmt::format("\"{}\" for {}", pattern, name),
                  .where = "data.tokenizer_pattern, or --pattern",
                  .fix = "remove it, or name a .tiktoken file"});
  }
  if (name.ends_with(".json"))
    return [](auto const& path, auto const& text, auto const&, auto end) { return read_hugging_face(path, text, end); };
  if (name.ends_with(".tiktoken"))
    return [](auto const& path, auto const& text, auto const& known, auto) { return read_tiktoken(path, text, known); };
  if (name.ends_with(".model"))
    return [](auto const& path, auto const& text, auto const&, auto) { return read_sentencepiece(path, text); };
  base::refuse({.expected = "\"bytes\", or a file *.json (Hugging Face's tokenizers), *.tiktoken (ranks) or "
                            "*.model (SentencePiece)",
                .found = "another ending",
                .where = name,
                .fix = "give the file the ending of what it is"});
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name, std::string const& pattern) {
  if (name == "bytes" && pattern.empty()) return make_byte_tokenizer();
  auto const read = reader_of(name, pattern);
  return read(name, read_tokenizer_file(name), pattern, {});
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string const& name, std::string const& text, std::string const& pattern,
                                           std::optional<std::int32_t> end) {
  return reader_of(name, pattern)(name, text, pattern, end);
}

std::string require_vocabulary(Tokenizer const& tokenizer, std::int64_t vocab_size) {
  // Models have up to so many rows that no token uses, to make the vocabulary divisible; more of them means that model
  // and tokenizer do not belong to each other.
  constexpr std::int64_t most_padding = 1024;
  auto const tokens = tokenizer.vocab_size();
  bool const bytes = tokenizer.hash() == make_byte_tokenizer()->hash();
  if (bytes ? vocab_size <= tokens : vocab_size >= tokens && vocab_size <= tokens + most_padding) {
    if (bytes || vocab_size == tokens) return "";
    return fmt::format("model.vocab_size = {} has {} more than the tokenizer's {} tokens: padding, which is never read",
                       vocab_size, vocab_size - tokens, tokens);
  }
  base::refuse(
      {.expected = bytes ? "a model of at most 256 tokens: this tokenizer makes a token of each byte"
                         : fmt::format("a model of {} to {} tokens, for this tokenizer", tokens, tokens + most_padding),
       .found = fmt::format("model.vocab_size = {}", vocab_size),
       .where = tokenizer.describe(),
       .fix = "name the tokenizer that the model was trained with (data.tokenizer, or --tokenizer), or give the model "
              "its vocabulary"});
}

}  // namespace p3d::text
