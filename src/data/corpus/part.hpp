// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a corpus as tokens, in two files: NNNNNN.bin, and NNNNNN.len with the lengths of its documents. Both are
// there only when they are whole.

#include "data/corpus/documents.hpp"

#include <p3d/data/indexed_dataset_writer.hpp>
#include <p3d/data/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace p3d::data {

struct PartOptions {
  DocumentOptions documents;
  TokenType type = TokenType::i32;
  std::int32_t end_of_document = -1;  ///< behind each document that is not empty; -1: nothing
  bool special = false;               ///< what text says of special tokens becomes these
};

/// What the head of NNNNNN.len says.
struct PartCounts {
  std::int64_t entries = 0;  ///< documents, and the rest of one that began before
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;  ///< that were tokenized
};

std::string part_file(std::string const& folder, std::size_t part, char const* ending);
/// Nothing when a part is not done, or not whole.
std::optional<PartCounts> done_part(std::string const& folder, std::size_t part, TokenType type);
/// Calls `take(tokens, begins)` for each entry; begins: false where it goes on with the document before.
void read_lengths(std::string const& folder, std::size_t part, std::function<void(std::int64_t, bool)> const& take);

void tokenize_part(std::vector<CorpusFile> const& files, CorpusPart const& part, Tokenizer const& tokenizer,
                   PartOptions const& options, std::string const& folder, std::size_t number,
                   std::function<void(std::int64_t)> const& progress);

}  // namespace p3d::data
