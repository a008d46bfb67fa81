// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tokenizer made of the parts that a file names: added tokens, normalizer, pre-tokenizer, byte pair encoding,
// decoder.

#include "text/tokenizers/added_tokens.hpp"
#include "text/tokenizers/bpe.hpp"
#include "text/tokenizers/decoder.hpp"
#include "text/tokenizers/normalizer.hpp"
#include "text/tokenizers/pre_tokenizer.hpp"

#include <p3d/text/tokenizer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace p3d::text {

/// The parts of a tokenizer.
struct BpeParts {
  Bpe model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  std::vector<AddedToken> added;
  std::int32_t end_of_document = -1;
  std::string name;  ///< name of the file, without folders
  std::uint64_t hash = 0;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts);

}  // namespace p3d::text
