// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sources of tokens: files of tokens (token_files.hpp), several of these in given shares, or a synthetic stream that is
// computed and not stored. A source is a read-only array of tokens; the sampler decides which of them are trained on,
// and in which order.

#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::text {
class Tokenizer;
}

namespace p3d::data {

/// A read-only array of tokens, each in [0, vocabulary).
class TokenSource {
public:
  virtual ~TokenSource() = default;
  /// Number of tokens.
  virtual std::int64_t size() const = 0;
  /// Reads tokens [first, first + out.size()), which must exist. Safe to call from several threads; allocates nothing.
  /// Throws base::Error (bad_input) for a token of a file that is not in the vocabulary.
  virtual void read(std::int64_t first, std::span<int> out) const = 0;
  /// A hash of the content (xxHash64, seed 0): equal on ranks that hold equal data. For files beyond 64 MiB it is a
  /// fingerprint: their sizes, the first 4 KiB of each, and 64 KiB at both ends and 1,000 blocks of 4 KiB at fixed
  /// places of all files as one array.
  virtual std::uint64_t hash() const = 0;
  /// One line for the log: "5 files, 1115394 bytes".
  virtual std::string describe() const = 0;

  /// The number of documents. They are in the order of their tokens, without gaps; 0: the source knows of none.
  virtual std::int64_t documents() const { return 0; }
  /// The tokens of document i, perhaps none; throws base::Error (bad_input) when a file says impossible things of it.
  virtual layout::Range document(std::int64_t i) const;
  /// True when it is known which tokens form a document. In text each file is one, though documents() counts none
  /// there.
  virtual bool knows_documents() const { return documents() > 0; }
  /// The tokens of the document that holds a token. Needs knows_documents().
  virtual layout::Range document_with(std::int64_t token) const;
  /// The number of sequences, as Megatron-LM calls documents or parts of them; they are in the same order.
  virtual std::int64_t sequences() const { return documents(); }
  virtual layout::Range sequence(std::int64_t i) const { return document(i); }
  /// The number of sources that are blended here, whose tokens follow each other. Any other source is its own only
  /// part.
  virtual std::size_t parts() const { return 1; }
  virtual TokenSource const& part(std::size_t) const { return *this; }
};

/// A source of the bytes of the files, one after the other, as tokens 0 to 255. Throws base::Error for an unreadable
/// file, for no bytes at all, and for a byte that is not in the vocabulary.
std::unique_ptr<TokenSource> make_byte_text(std::vector<std::string> const& paths, std::int64_t vocab_size);

/// The tokens of the files, which a tokenizer makes of each; after each file the token that ends a document, where
/// there is one. All in memory, four bytes a token. Throws as make_byte_text does.
std::unique_ptr<TokenSource> make_tokenized_text(std::vector<std::string> const& paths,
                                                 text::Tokenizer const& tokenizer);

/// A learnable stream of 2^40 tokens. Token i is either noise or follows from token i - 1:
///   r = random_block(random_key(seed, "data.synthetic"), stream 0, block i)
///   noise when i = 0 or r.w[0] < 2^29 (one in eight): token = r.w[1] * vocab >> 32
///   otherwise token = (a * previous + 7) mod vocab, a = the smallest integer >= 5 that is coprime to vocab.
/// To read a token one walks back to the last noise: 8 steps on average.
std::unique_ptr<TokenSource> make_synthetic(std::uint64_t seed, std::int64_t vocab_size);

/// The mean cross entropy (nats per token) that a perfect model reaches on the synthetic stream.
double synthetic_entropy(std::int64_t vocab_size);

/// A source of several sources that a sampler blends. `weights` are those of config.data.source, and count in the hash.
std::unique_ptr<TokenSource> make_joined(std::vector<std::unique_ptr<TokenSource>> parts,
                                         std::vector<double> const& weights);

/// Makes the source of a checked configuration.
std::unique_ptr<TokenSource> make_token_source(config::Config const& config);

/// A division of a source: the training part, and the validation part at its end.
struct Split {
  layout::Range training;
  layout::Range held_out;
};
/// Divides tokens: the validation part is the last floor(fraction * tokens).
Split split_tokens(std::int64_t tokens, double fraction);
/// Divides a source. With documents the validation part is whole ones: the last floor(fraction * documents), and at
/// least one, unless fraction is 0. Without documents it is as split_tokens. Throws base::Error (bad_input) when no
/// document is left for training.
Split split_source(TokenSource const& source, double fraction);

}  // namespace p3d::data
