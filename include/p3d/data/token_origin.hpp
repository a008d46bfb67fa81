// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tokenizer made a pair of token files: PREFIX.meta.json, which p3d data tokenize writes beside PREFIX.bin and
// PREFIX.idx. Ids of another tokenizer look like any others, so a run compares before it trains on them.

#include <cstdint>
#include <optional>
#include <string>

namespace p3d::config {
struct Config;
}

namespace p3d::data {

class Tokenizer;

struct TokenOrigin {
  std::string tokenizer;              ///< name of its file, without folders; "bytes"
  std::string pattern;                ///< of a *.tiktoken file
  std::uint64_t hash = 0;             ///< Tokenizer::hash
  std::int64_t vocab_size = 0;        ///< Tokenizer::vocab_size
  std::int64_t end_of_document = -1;  ///< the token behind each document; -1: none
  std::int64_t bytes = 0;             ///< of PREFIX.bin, which tells whether the note is of this pair
  bool operator==(TokenOrigin const&) const = default;
};

/// PREFIX.meta.json.
std::string origin_file(std::string const& prefix);
void write_origin(std::string const& prefix, TokenOrigin const& origin);
/// Nothing where there is no such file. Throws base::Error (bad_input) for one that cannot be read, and for one that
/// was written for another PREFIX.bin than the one beside it.
std::optional<TokenOrigin> read_origin(std::string const& prefix);

/// Compares the notes beside the token files of a checked configuration (data.format = "megatron"; nothing otherwise)
/// with the run's tokenizer, of the name data.tokenizer. Throws base::Error (bad_input) with both hashes when they
/// differ. Returns what there is to say of pairs without a note, or "".
std::string require_tokenizer(config::Config const& config, Tokenizer const& tokenizer);

}  // namespace p3d::data
