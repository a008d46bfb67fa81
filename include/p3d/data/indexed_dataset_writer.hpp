// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes tokens as Megatron's IndexedDataset, version 1: PREFIX.bin holds the tokens, PREFIX.idx says where documents
// begin. docs/tokenize.md describes both. The files are those that Megatron's own writer makes, byte by byte.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::data {

/// How a token is stored, by its number in the file.
enum class TokenType : std::uint8_t { i32 = 4, u16 = 8 };
/// Bytes of a token.
int size_of(TokenType type);
/// What Megatron takes: u16 where the vocabulary is below 65500.
TokenType token_type(std::int64_t vocab_size);

/// Calls its argument with the number of tokens of each document, in order; more than once the same.
using DocumentLengths = std::function<void(std::function<void(std::int64_t)> const&)>;
/// What an index says.
struct IndexCounts {
  std::int64_t sequences = 0, documents = 0, tokens = 0;
};
/// Writes the index of documents of one sequence each; a document without tokens has none. The file is there only when
/// it is whole. Throws base::Error: bad_input for a document of 2^31 tokens or more, run_failed for a disk that is
/// full.
IndexCounts write_index(std::string const& path, TokenType type, DocumentLengths const& lengths);

/// For documents that come one by one. Nothing is there under the final names before finish().
class IndexedDatasetWriter {
public:
  IndexedDatasetWriter(std::string const& prefix, TokenType type);
  ~IndexedDatasetWriter();
  /// Every token must fit the type.
  void add_document(std::span<std::int32_t const> tokens);
  IndexCounts finish();

private:
  struct Files;
  std::unique_ptr<Files> files_;
  std::string prefix_;
  TokenType type_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace p3d::data
