// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to tokens and back. A tokenizer is read from one file and never changes; ids are those of the library that the
// file was made for.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A tokenizer. All members are safe to call from several threads.
class Tokenizer {
public:
  virtual ~Tokenizer() = default;
  /// The number of ids: they are in [0, vocab_size()). Some of them may stand for nothing.
  virtual std::int64_t vocab_size() const = 0;
  /// Appends the tokens of `text` (any bytes) to `out`. The text of a special token ("<|endoftext|>") becomes its id
  /// where `special` is true; otherwise it is text like any other.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out, bool special = false) const = 0;
  /// Appends the bytes of a token to `out`. One token may be a part of a character. Throws base::Error (bad_input) for
  /// an id outside [0, vocab_size()).
  virtual void decode(std::int32_t token, std::string& out) const = 0;
  /// The token that ends a document, as the file says; -1 when it names none.
  virtual std::int32_t end_of_document() const = 0;
  /// The id of a token by its exact text, special or not; -1 when there is none.
  virtual std::int32_t find(std::string_view token) const = 0;
  /// The xxHash64 (seed 0) of the file, or of "bytes" for the tokenizer without a file.
  virtual std::uint64_t hash() const = 0;
  /// One line for the log: "tokenizer.json: byte-level BPE, 50257 tokens".
  virtual std::string describe() const = 0;

  /// True when a long text can be cut at lines: encode(a + b) is encode(a) and then encode(b), wherever a ends with a
  /// line end that white space does not precede and b begins with an ASCII letter.
  virtual bool cuts_at_lines() const { return false; }

  /// The tokens of `text`.
  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> out;
    encode(text, out);
    return out;
  }
  /// The text of a sequence from its start: some files ask for something there, such as no space before the first word.
  virtual std::string decode(std::vector<std::int32_t> const& tokens) const {
    std::string out;
    for (auto token : tokens) decode(token, out);
    return out;
  }
};

/// Makes the tokenizer of a name: "bytes" (256 tokens, one for each byte), or the path of a file: *.json of Hugging
/// Face's tokenizers, model type BPE; *.tiktoken, ranks, with `pattern` for how text is split ("gpt2", "cl100k",
/// "o200k", "llama3", "qwen2"); *.model of SentencePiece, where p3d was built with it. docs/tokenizers.md says which
/// parts of these are supported, and what is done with text that is not UTF-8. No token is added that stands for no
/// text (BOS, EOS). Throws base::Error (bad_input) that names the file and the place in it.
std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name, std::string const& pattern = "");
/// The paths of the tokenizer's files in the folder of a model in Hugging Face form, the first to try first.
std::vector<std::string> tokenizer_files(std::string const& folder);
/// Reads the bytes of a tokenizer's file, of at most 256 MiB.
std::string read_tokenizer_file(std::string const& path);
/// Makes the tokenizer of a file whose bytes are `text`; `name` has the file's ending. Without `end`, `name` is the
/// file's path: a file beside it may say which token ends a document. Where the bytes come from elsewhere, the caller
/// gives that token as `end` (-1: none), and no file is read. Ranks and SentencePiece say it themselves.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string const& name, std::string const& text,
                                           std::string const& pattern = "", std::optional<std::int32_t> end = {});

/// Throws base::Error (bad_input) unless a model of `vocab_size` tokens fits this tokenizer: it has a row for each
/// token, and at most 1,024 more (people pad a vocabulary to a multiple of some size). The tokenizer "bytes" is
/// different: a model may have fewer than 256 rows, where its texts need no more, but not more. Returns a line about
/// padding, or "".
std::string require_vocabulary(Tokenizer const& tokenizer, std::int64_t vocab_size);

}  // namespace p3d::text
