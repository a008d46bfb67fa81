// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a corpus as tokens, in two files: NNNNNN.bin with the tokens, and NNNNNN.len with the lengths of its
// documents. Both files appear only when they are whole.

#include "text/corpus/documents.hpp"

#include <p3d/text/indexed_dataset_writer.hpp>
#include <p3d/text/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace p3d::text {

/// Options of a part.
struct PartOptions {
  DocumentOptions documents;
  TokenType type = TokenType::i32;
  std::int32_t end_of_document = -1;  ///< the token behind each document that is not empty; -1: none
  bool special = false;               ///< special tokens in text become their ids
};

/// The counts in the head of NNNNNN.len.
struct PartCounts {
  std::int64_t entries = 0;  ///< documents, and the end of one that began in an earlier part
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;  ///< bytes of text that were tokenized
};

/// The path of a part's file: FOLDER/NNNNNN.ENDING.
std::string part_file(std::string const& folder, std::size_t part, char const* ending);
/// The counts of a finished part; nothing when the part is not done, or not whole.
std::optional<PartCounts> done_part(std::string const& folder, std::size_t part, TokenType type);
/// Calls `take(tokens, begins)` for each entry of a part; `begins` is false where the entry goes on with the document
/// before.
void read_lengths(std::string const& folder, std::size_t part, std::function<void(std::int64_t, bool)> const& take);

/// Tokenizes a part and writes its files.
void tokenize_part(std::vector<CorpusFile> const& files, CorpusPart const& part, Tokenizer const& tokenizer,
                   PartOptions const& options, std::string const& folder, std::size_t number,
                   std::function<void(std::int64_t)> const& progress);

}  // namespace p3d::text
