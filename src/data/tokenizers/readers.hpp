// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kinds of files that tokenizers come in.

#include <p3d/data/tokenizer.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace p3d::data {

// Each is given the bytes of the file `path`.

/// tokenizer.json of Hugging Face's tokenizers, of model type BPE.
std::unique_ptr<Tokenizer> read_hugging_face(std::string const& path, std::string const& text);
/// Ranks of tiktoken: a line for each token, its bytes in base64 and its rank.
std::unique_ptr<Tokenizer> read_tiktoken(std::string const& path, std::string const& text, std::string const& pattern);
/// A model of SentencePiece, by its library.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string const& path, std::string const& text);

}  // namespace p3d::data
