// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index file of Megatron-LM's IndexedDataset, version 1 (little endian):
//
//   0        9 bytes  "MMIDIDX\0\0"
//   9        u64      version, 1
//   17       u8       type of a token
//   18       u64      S, number of sequences
//   26       u64      D, number of documents + 1
//   34       i32[S]   tokens of each sequence
//   34+4S    i64[S]   its first byte in the .bin file
//   34+12S   i64[D]   first sequence of each document; [0] = 0, [D-1] = S
//
// Sequences must follow each other without gaps, as every writer of the format makes them: then the number of a token
// gives its place. The arrays are not aligned; they are read in place, and believed only where they were checked.

#include "data/mapped_file.hpp"
#include "data/token_type.hpp"

#include <p3d/base/error.hpp>
#include <p3d/layout/axes.hpp>

#include <functional>
#include <optional>

namespace p3d::data {

/// An index file, mapped into memory.
class MegatronIndex {
public:
  /// Checks the header, the sizes of both files, and, with `sampled`, the ends and about 1,000 places of the arrays.
  /// Throws base::Error (bad_input) with file, byte offset and document.
  MegatronIndex(std::string const& path, std::string bin_path, std::int64_t bin_bytes, std::string const& key,
                bool sampled);

  TokenType type() const { return type_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  MappedFile const& file() const { return file_; }

  /// The tokens of a sequence. Throws base::Error when the file says impossible things of it.
  layout::Range sequence(std::int64_t i) const;
  /// The tokens of a document. Throws base::Error when the file says impossible things of it.
  layout::Range document(std::int64_t i) const;
  /// The document that holds a token; in a damaged file it may be any.
  std::int64_t document_of(std::int64_t token) const;
  /// Calls tell() with every error of the arrays until it returns false.
  void walk(std::function<bool(base::ErrorText const&)> const& tell) const;

private:
  /// An error of the arrays, and the byte where it is.
  struct Error {
    std::string expected, found;
    std::int64_t offset;
  };
  void read_header();
  void check_sizes() const;
  void check_sample() const;
  /// The stored number of tokens of a sequence.
  std::int64_t size_at(std::int64_t i) const;
  /// The stored first byte of a sequence in the .bin file.
  std::int64_t pointer(std::int64_t i) const;
  /// The stored first sequence of a document.
  std::int64_t first_sequence(std::int64_t i) const;
  std::optional<base::ErrorText> sequence_error(std::int64_t i) const;
  std::optional<base::ErrorText> document_error(std::int64_t i) const;
  base::ErrorText text(Error const& error, std::string const& of) const;
  [[noreturn]] void refuse(std::string expected, std::string found, std::int64_t offset) const;

  MappedFile file_;
  std::string bin_path_;
  std::int64_t bin_bytes_;
  TokenType type_ = TokenType::i32;
  std::int64_t item_ = 4, tokens_ = 0, sequences_ = 0, documents_ = 0;  ///< bytes of a token, then counts
};

}  // namespace p3d::data
