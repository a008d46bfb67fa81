// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <numeric>
#include <string>

namespace p3d::data {

namespace {

/// Tokens of the stream.
constexpr std::int64_t stream_size = std::int64_t{1} << 40;
constexpr std::uint32_t noise_below = std::uint32_t{1} << 29;  // one eighth of 2^32
constexpr std::int64_t increment = 7;

/// The stream; token_source.hpp defines it.
class Synthetic final : public TokenSource {
public:
  Synthetic(std::uint64_t seed, std::int64_t vocab_size)
      : seed_(seed), vocab_(vocab_size), key_(base::random_key(seed, "data.synthetic")) {
    P3D_REQUIRE(vocab_ >= 1 && vocab_ <= (std::int64_t{1} << 31), "a token fits an int");
    while (std::gcd(factor_, vocab_) != 1) ++factor_;  // coprime: then the rule is a bijection, and tokens stay uniform
  }

  std::int64_t size() const override { return stream_size; }

  void read(std::int64_t first, std::span<int> out) const override {
    P3D_REQUIRE(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(), "the tokens exist");
    if (out.empty()) return;
    // Applying the rule from the last noise on gives the first token.
    auto start = first;
    while (!is_noise(start)) --start;
    std::int64_t token = 0;
    for (auto i = start; i <= first; ++i) token = next(i, token);
    out[0] = static_cast<int>(token);
    for (std::size_t k = 1; k < out.size(); ++k) {
      token = next(first + static_cast<std::int64_t>(k), token);
      out[k] = static_cast<int>(token);
    }
  }

  std::uint64_t hash() const override {
    auto const text = fmt::format("p3d synthetic 1, seed {}, vocabulary {}", seed_, vocab_);
    return XXH64(text.data(), text.size(), 0);
  }

  std::string describe() const override {
    return fmt::format("synthetic, {} tokens, best possible loss {:.4f}", size(), synthetic_entropy(vocab_));
  }

private:
  base::RandomWords words(std::int64_t i) const { return base::random_block(key_, 0, static_cast<std::uint64_t>(i)); }
  bool is_noise(std::int64_t i) const { return i == 0 || words(i).w[0] < noise_below; }
  std::int64_t next(std::int64_t i, std::int64_t previous) const {
    auto const r = words(i);
    if (i == 0 || r.w[0] < noise_below) {
      return static_cast<std::int64_t>((static_cast<std::uint64_t>(r.w[1]) * static_cast<std::uint64_t>(vocab_)) >> 32);
    }
    return (factor_ * previous + increment) % vocab_;
  }

  std::uint64_t seed_;
  std::int64_t vocab_;
  base::RandomKey key_;
  std::int64_t factor_ = 5;
};

}  // namespace

std::unique_ptr<TokenSource> make_synthetic(std::uint64_t seed, std::int64_t vocab_size) {
  return std::make_unique<Synthetic>(seed, vocab_size);
}

double synthetic_entropy(std::int64_t vocab_size) {
  // The rule's token has probability 7/8 + 1/(8 V), each of the other V - 1 tokens 1/(8 V).
  auto const v = static_cast<double>(vocab_size);
  double const other = 1.0 / (8.0 * v), ruled = 7.0 / 8.0 + other;
  return -ruled * std::log(ruled) - (v - 1.0) * other * std::log(other);
}

}  // namespace p3d::data
