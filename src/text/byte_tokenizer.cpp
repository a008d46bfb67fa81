// SPDX-License-Identifier: Apache-2.0
#include "text/byte_tokenizer.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <xxhash.h>

namespace p3d::text {

namespace {

class ByteTokenizer final : public Tokenizer {
public:
  std::int64_t vocab_size() const override { return 256; }

  void encode(std::string_view text, std::vector<std::int32_t>& out, bool) const override {
    for (char const c : text) out.push_back(static_cast<unsigned char>(c));
  }

  void decode(std::int32_t token, std::string& out) const override {
    if (token < 0 || token > 255) {
      base::refuse({.expected = "a token from 0 to 255: this tokenizer makes one of each byte",
                    .found = fmt::format("{}", token),
                    .where = "tokenizer \"bytes\"",
                    .fix = "use the tokenizer that the tokens were made with"});
    }
    out.push_back(static_cast<char>(token));
  }

  std::int32_t end_of_document() const override { return -1; }
  std::int32_t find(std::string_view token) const override {
    return token.size() == 1 ? static_cast<unsigned char>(token[0]) : -1;
  }
  bool cuts_at_lines() const override { return true; }
  std::uint64_t hash() const override { return XXH64("bytes", 5, 0); }
  std::string describe() const override { return "bytes, 256 tokens"; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace p3d::text
