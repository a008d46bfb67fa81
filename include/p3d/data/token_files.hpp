// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of token ids, made by p3d, Megatron-LM, llm.c or numpy, and text read as bytes. Tokens are read in place: files
// are mapped into memory, and a rank holds nothing that grows with them.
//
// | format   | paths                                         | tokens                                               |
// |----------|-----------------------------------------------|------------------------------------------------------|
// | text     | files, folders                                | bytes                                                |
// | megatron | prefixes, .bin or .idx files, folders         | .bin, as the .idx says: 8 to 64 bits; with documents |
// | llmc     | files, folders with .bin files                | after a header of 1024 bytes: 16 or 32 bits          |
// | npy      | files, folders with .npy files                | arrays of one or two dimensions: 8 to 64 bits        |
//
// All integers are little endian. Several files are one source, in the order of the paths, sorted within a folder.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/token_source.hpp>

#include <functional>
#include <limits>

namespace p3d::data {

/// The description of one file.
struct TokenFileFacts {
  std::string path;  ///< for a pair of files: without .bin and .idx
  char const* type;  ///< "uint16"
  std::int64_t tokens = 0;
  std::int64_t documents = 0;  ///< 0: the file knows of none
  std::int64_t sequences = 0;
  std::int64_t bytes = 0;  ///< size of the file, or of both files of a pair
};

/// A source of tokens in one or more files.
class TokenFiles final : public TokenSource {
public:
  /// How much of an index is checked when it is opened: `sample` checks the ends of its arrays and 1,000 places,
  /// `header` no array. Later reads are checked when they happen, in both.
  enum class Check { sample, header };

  /// Throws base::Error (bad_input) with file and byte offset: for a file that is missing or of another format, sizes
  /// that do not match, no tokens at all, and in text for a byte that is not in the vocabulary; in other formats ids
  /// are checked when they are read. `key` is the key of the input that named the paths.
  TokenFiles(config::DataFormat format, std::vector<std::string> const& paths, std::int64_t vocab_size = most_tokens,
             std::string const& key = "data.path", Check check = Check::sample);
  ~TokenFiles() override;

  /// The number of ids that p3d can hold; larger ids are refused whatever the vocabulary.
  static constexpr std::int64_t most_tokens = std::int64_t{1} << 31;

  std::int64_t size() const override { return begins_.back(); }
  void read(std::int64_t first, std::span<int> out) const override;
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override;
  std::int64_t documents() const override { return first_documents_.back(); }
  layout::Range document(std::int64_t i) const override;
  bool knows_documents() const override { return documents() > 0 || format_ == config::DataFormat::text; }
  layout::Range document_with(std::int64_t token) const override;
  std::int64_t sequences() const override { return first_sequences_.back(); }
  layout::Range sequence(std::int64_t i) const override;

  config::DataFormat format() const { return format_; }
  std::vector<TokenFileFacts> files() const;
  /// Reads all tokens and the whole index. Calls tell() with each error of the files until it returns false.
  void walk(std::function<bool(base::ErrorText const&)> const& tell) const;
  /// Tells the system that whole files are about to be read in order (`on`), or no longer.
  void read_ahead(bool on) const;

private:
  /// One file, or one pair of files.
  struct Shard;
  /// The shard that holds number i of a list of beginnings; sets `within` to the number there.
  Shard const& shard_of(std::vector<std::int64_t> const& begins, std::int64_t i, std::int64_t& within) const;
  layout::Range shifted(layout::Range tokens, Shard const& shard) const;
  base::ErrorText bad_token(Shard const& shard, std::int64_t token) const;
  void refuse_empty() const;
  void check_text() const;
  /// The hash of the content.
  std::uint64_t content() const;

  config::DataFormat format_;
  std::int64_t vocab_size_;
  std::string key_;
  std::vector<Shard> shards_;
  /// The first token, document and sequence of each shard in the source; then their ends.
  std::vector<std::int64_t> begins_{0}, first_documents_{0}, first_sequences_{0};
  std::uint64_t hash_ = 0;
};

/// The format that a file seems to have, by its first bytes or by an index beside it; text otherwise.
config::DataFormat guess_format(std::string const& path);

}  // namespace p3d::data
