// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where tokens come from: text files read as bytes, or a synthetic stream that is computed and not stored. A source is
// a read-only array of tokens; which of them are trained on, and in which order, is the sampler's business.

#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::config {
struct Config;
}

namespace p3d::data {

/// A read-only array of tokens, each in [0, vocabulary).
class TokenSource {
public:
  virtual ~TokenSource() = default;
  /// Number of tokens.
  virtual std::int64_t size() const = 0;
  /// Tokens [first, first + out.size()), which must exist. Safe to call from several threads; allocates nothing.
  virtual void read(std::int64_t first, std::span<int> out) const = 0;
  /// Hash of the content (xxHash64, seed 0): equal on ranks that hold equal data.
  virtual std::uint64_t hash() const = 0;
  /// One line for the log: "5 files, 1115394 bytes".
  virtual std::string describe() const = 0;
};

/// One file of a text source.
struct TextFile {
  std::string path;
  std::int64_t bytes = 0;
};

/// The files behind the given paths, in reading order: each path in turn; a folder stands for the regular files below
/// it, recursively, sorted by path (bytewise). Symbolic links are followed; a file that was met before under another
/// name is left out. Throws base::Error when a path does not exist or no file is found.
std::vector<TextFile> find_text_files(std::vector<std::string> const& paths);
/// Of all files together: the number of tokens, and of bytes in the memory of each rank.
std::int64_t total_bytes(std::vector<TextFile> const& files);

/// The bytes of the files, one after the other, as tokens 0 to 255. Throws base::Error for an unreadable file, for no
/// bytes at all, and for a byte that is not in the vocabulary.
std::unique_ptr<TokenSource> make_byte_text(std::vector<std::string> const& paths, std::int64_t vocab_size);

/// A learnable stream of 2^40 tokens. Token i is either noise or follows from token i - 1:
///   r = random_block(random_key(seed, "data.synthetic"), stream 0, block i)
///   noise when i = 0 or r.w[0] < 2^29 (one in eight): token = r.w[1] * vocab >> 32
///   otherwise token = (a * previous + 7) mod vocab, a = the smallest integer >= 5 that is coprime to vocab.
/// To read a token one walks back to the last noise: 8 steps on average.
std::unique_ptr<TokenSource> make_synthetic(std::uint64_t seed, std::int64_t vocab_size);

/// The mean cross entropy (nats) that a perfect model reaches on the synthetic stream.
double synthetic_entropy(std::int64_t vocab_size);

/// The source of a checked configuration.
std::unique_ptr<TokenSource> make_token_source(config::Config const& config);

/// The training part and the held-out part (the last floor(fraction * tokens) tokens).
struct Split {
  layout::Range training;
  layout::Range held_out;
};
Split split_tokens(std::int64_t tokens, double fraction);

}  // namespace p3d::data
