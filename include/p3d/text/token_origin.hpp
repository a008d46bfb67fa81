// SPDX-License-Identifier: Apache-2.0
#pragma once
// The note about the tokenizer that made a pair of token files: PREFIX.meta.json, which p3d data tokenize writes beside
// PREFIX.bin and PREFIX.idx. Ids of another tokenizer look like any others, so a run compares tokenizers before it
// trains.

#include <cstdint>
#include <optional>
#include <string>

namespace p3d::config {
struct Config;
}

namespace p3d::text {

class Tokenizer;

/// The contents of a note.
struct TokenOrigin {
  std::string tokenizer;              ///< name of the tokenizer's file, without folders; or "bytes"
  std::string pattern;                ///< pattern of a *.tiktoken file
  std::uint64_t hash = 0;             ///< Tokenizer::hash
  std::int64_t vocab_size = 0;        ///< Tokenizer::vocab_size
  std::int64_t end_of_document = -1;  ///< the token behind each document; -1: none
  std::int64_t bytes = 0;             ///< size of PREFIX.bin, which tells whether the note is about this pair
  bool operator==(TokenOrigin const&) const = default;
};

/// Whether two notes are about one tokenizer, which gives the same tokens; a note may be made for a tokenizer at hand.
bool same_tokenizer(TokenOrigin const& a, TokenOrigin const& b);
/// The tokenizer of a note for messages: "gpt2.tiktoken, pattern gpt2 (hash 00...2a)".
std::string tokenizer_in_words(TokenOrigin const& origin);
/// The path of the note: PREFIX.meta.json.
std::string origin_file(std::string const& prefix);
/// Writes the note.
void write_origin(std::string const& prefix, TokenOrigin const& origin);
/// Reads the note; nothing when there is no such file. Throws base::Error (bad_input) for a note that cannot be read,
/// and for one that was written for another PREFIX.bin than the one beside it.
std::optional<TokenOrigin> read_origin(std::string const& prefix);

/// Compares the notes beside the token files of a checked configuration (data.format = "megatron"; nothing otherwise)
/// with the run's tokenizer, whose name is data.tokenizer. Throws base::Error (bad_input) with both hashes when they
/// differ. Returns a line about pairs without a note, or "".
std::string require_tokenizer(config::Config const& config, Tokenizer const& tokenizer);
/// Compares data.eod_token with what these notes say about the ends of documents. Returns a warning, or "".
std::string note_about_ends(config::Config const& config);

}  // namespace p3d::text
