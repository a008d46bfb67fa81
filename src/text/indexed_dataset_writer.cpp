// SPDX-License-Identifier: Apache-2.0
// Writes the two files of Megatron-LM's IndexedDataset. The index has three arrays (sizes of sequences, their first
// bytes, first sequences of documents), one behind the other. The lengths are walked through once for each, instead of
// being kept: the caller may read them from files, as a corpus can have more documents than fit into memory.
#include <p3d/text/indexed_dataset_writer.hpp>

#include "text/output_file.hpp"
#include "text/token_output.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <limits>
#include <string_view>

namespace p3d::text {

int size_of(TokenType type) { return type == TokenType::u16 ? 2 : 4; }

TokenType token_type(std::int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

void write_tokens(OutputFile& file, TokenType type, std::span<std::int32_t const> tokens) {
  if (type == TokenType::i32) return file.write(tokens.data(), tokens.size_bytes());
  std::vector<std::uint16_t> narrow(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    narrow[i] = static_cast<std::uint16_t>(tokens[i]);
    if (narrow[i] == tokens[i]) continue;
    base::refuse({.expected = "tokens from 0 to 65535, which 2 bytes hold",
                  .found = fmt::format("{}", tokens[i]),
                  .where = "the tokenizer's output",
                  .fix = "store tokens in 4 bytes"});
  }
  file.write(narrow.data(), narrow.size() * sizeof(std::uint16_t));
}

IndexCounts write_index(std::string const& path, TokenType type, DocumentLengths const& lengths) {
  IndexCounts counts;
  // Everything is counted first, as the counts stand in front of the arrays. An empty document is one without a
  // sequence.
  lengths([&](std::int64_t tokens) {
    if (tokens > std::numeric_limits<std::int32_t>::max()) {
      base::refuse({.expected = "documents of less than 2^31 tokens, which is what the index can hold",
                    .found = fmt::format("{} tokens in document {}", tokens, counts.documents),
                    .where = path,
                    .fix = "divide the text into documents"});
    }
    ++counts.documents;
    counts.sequences += tokens > 0;
    counts.tokens += tokens;
  });
  OutputFile file(path);
  // The header: magic, version 1, type of tokens, number of sequences, number of starts of documents.
  file.write("MMIDIDX\0\0", 9);
  file.put(std::uint64_t{1});
  file.put(static_cast<std::uint8_t>(type));
  file.put(static_cast<std::uint64_t>(counts.sequences));
  file.put(static_cast<std::uint64_t>(counts.documents + 1));
  lengths([&](std::int64_t tokens) {
    if (tokens > 0) file.put(static_cast<std::int32_t>(tokens));
  });
  std::int64_t offset = 0, sequence = 0;
  lengths([&](std::int64_t tokens) {
    if (tokens > 0) file.put(offset);
    offset += tokens * size_of(type);
  });
  file.put(sequence);
  lengths([&](std::int64_t tokens) {
    sequence += tokens > 0;
    file.put(sequence);
  });
  file.finish();
  return counts;
}

/// The file of tokens, which is written while documents come.
struct IndexedDatasetWriter::Files {
  explicit Files(std::string const& prefix) : tokens(prefix + ".bin") {}
  OutputFile tokens;
};

IndexedDatasetWriter::IndexedDatasetWriter(std::string const& prefix, TokenType type)
    : files_(std::make_unique<Files>(prefix)), prefix_(prefix), type_(type) {}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

void IndexedDatasetWriter::add_document(std::span<std::int32_t const> tokens) {
  write_tokens(files_->tokens, type_, tokens);
  lengths_.push_back(std::ssize(tokens));
}

IndexCounts IndexedDatasetWriter::finish() {
  files_->tokens.finish();
  return write_index(prefix_ + ".idx", type_, [&](auto const& take) {
    for (auto length : lengths_) take(length);
  });
}

}  // namespace p3d::text
