// SPDX-License-Identifier: Apache-2.0
#pragma once
// Readers of the kinds of tokenizer files.

#include <p3d/text/tokenizer.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace p3d::text {

// Each reader gets the bytes of the file `path` as `text`.

/// Reads a tokenizer.json of Hugging Face's tokenizers, of model type BPE.
std::unique_ptr<Tokenizer> read_hugging_face(std::string const& path, std::string const& text,
                                             std::optional<std::int32_t> known_end);
/// Reads a file of ranks of tiktoken: a line for each token, with its bytes in base64 and its rank.
std::unique_ptr<Tokenizer> read_tiktoken(std::string const& path, std::string const& text, std::string const& pattern);
/// Reads a model of SentencePiece, with that library.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const& text);

}  // namespace p3d::text
