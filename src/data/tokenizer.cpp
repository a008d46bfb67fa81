// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/tokenizer.hpp>

#include "data/byte_tokenizer.hpp"
#include "data/tokenizers/patterns.hpp"
#include "data/tokenizers/readers.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

namespace p3d::data {

std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name, std::string const& pattern) {
  if (!pattern.empty() && !name.ends_with(".tiktoken")) {
    throw base::Error({.expected = "a pattern only for a file of ranks, which does not say how text is split",
                       .found = fmt::format("\"{}\" for {}", pattern, name),
                       .where = "data.tokenizer_pattern, or --pattern",
                       .fix = "remove it, or name a .tiktoken file"},
                      base::ExitCode::bad_input);
  }
  if (name == "bytes") return make_byte_tokenizer();
  if (name.ends_with(".json")) return read_hugging_face(name);
  if (name.ends_with(".tiktoken")) return read_tiktoken(name, pattern);
  if (name.ends_with(".model")) return read_sentencepiece(name);
  throw base::Error({.expected = "\"bytes\", or a file *.json (Hugging Face's tokenizers), *.tiktoken (ranks) or "
                                 "*.model (SentencePiece)",
                     .found = name,
                     .where = "the name of the tokenizer",
                     .fix = "give the file the ending of what it is"},
                    base::ExitCode::bad_input);
}

}  // namespace p3d::data
