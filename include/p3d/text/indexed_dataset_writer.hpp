// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes tokens as Megatron's IndexedDataset, version 1: PREFIX.bin holds the tokens, PREFIX.idx tells where documents
// begin. docs/tokenize.md describes both. The files are the same, byte by byte, as those of Megatron's own writer.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::text {

/// How a token is stored; the value is the type's number in the file.
enum class TokenType : std::uint8_t { i32 = 4, u16 = 8 };
/// Bytes of one token.
int size_of(TokenType type);
/// The type that Megatron chooses: u16 where the vocabulary is below 65500.
TokenType token_type(std::int64_t vocab_size);

/// Calls its argument with the number of tokens of each document, in order. It may be called more than once, and must
/// give the same numbers each time.
using DocumentLengths = std::function<void(std::function<void(std::int64_t)> const&)>;
/// The counts of a written index.
struct IndexCounts {
  std::int64_t sequences = 0, documents = 0, tokens = 0;
};
/// Writes the index of documents that are one sequence each; a document without tokens has no sequence. The file
/// appears only when it is whole. Throws base::Error: bad_input for a document of 2^31 tokens or more, run_failed for a
/// full disk.
IndexCounts write_index(std::string const& path, TokenType type, DocumentLengths const& lengths);

/// Writes documents that come one by one. No file has its final name before finish().
class IndexedDatasetWriter {
public:
  IndexedDatasetWriter(std::string const& prefix, TokenType type);
  ~IndexedDatasetWriter();
  /// Appends a document. Every token must fit the type.
  void add_document(std::span<std::int32_t const> tokens);
  /// Writes the index and gives the files their names.
  IndexCounts finish();

private:
  struct Files;
  std::unique_ptr<Files> files_;
  std::string prefix_;
  TokenType type_;
  std::vector<std::int64_t> lengths_;  ///< tokens of each document
};

}  // namespace p3d::text
