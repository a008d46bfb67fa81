// SPDX-License-Identifier: Apache-2.0
// The tokens that Hugging Face's tokenizers, tiktoken and sentencepiece make with the same files.
#include "long.hpp"

#include <p3d/text/tokenizer.hpp>

#include <gtest/gtest.h>
#include <xxhash.h>

#include <map>
#include <random>
#include <sstream>

namespace {
using namespace p3d;
using text::make_tokenizer;
using test::tokenizer_file;

struct Kind {
  char const* name;  ///< of the file with ids
  char const* file;
  char const* pattern;
  bool bytes;  ///< decode(encode(x)) = x for any bytes
};

std::vector<Kind> kinds() {
  std::vector<Kind> out = {{"gpt2", "gpt2.json", "", true},
                           {"llama3", "llama3.json", "", true},
                           {"qwen2", "qwen2.json", "", false},
                           {"llama2", "llama2.json", "", false},
                           {"ranks", "ranks.tiktoken", "llama3", true}};
#if P3D_SENTENCEPIECE
  out.push_back({"bpe", "bpe.model", "", false});
  out.push_back({"unigram", "unigram.model", "", false});
#endif
  return out;
}

std::vector<std::int32_t> numbers(std::string const& line) {
  std::istringstream in(line);
  std::vector<std::int32_t> out;
  for (std::int32_t n = 0; in >> n;) out.push_back(n);
  return out;
}

std::string readable(std::string const& bytes) { return testing::PrintToString(bytes); }

TEST(TokenizerReference, IdsOfShortTexts) {
  auto const texts = test::hex_lines("cases.hex");
  ASSERT_GT(texts.size(), 100u);
  for (auto const& kind : kinds()) {
    auto const tokenizer = make_tokenizer(tokenizer_file(kind.file), kind.pattern);
    auto const expected = test::lines_of(tokenizer_file(std::string(kind.name) + ".ids"));
    ASSERT_EQ(expected.size(), texts.size());
    int compared = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      auto const ids = tokenizer->encode(texts[i]);
      if (kind.bytes) {
        EXPECT_EQ(tokenizer->decode(ids), texts[i]) << kind.name << ": " << readable(texts[i]);
      }
      if (expected[i] == "-") continue;
      EXPECT_EQ(ids, numbers(expected[i])) << kind.name << ": " << readable(texts[i]);
      ++compared;
    }
    EXPECT_GT(compared, 60) << kind.name;
  }
}

TEST(TokenizerReference, IdsOfAMegabyte) {
  auto const text = test::draw_text(11, 1'000'000);
  std::map<std::string, std::string> expected;
  for (auto const& line : test::lines_of(tokenizer_file("hashes.txt")))
    expected[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  ASSERT_EQ(expected.size(), 6u);
  for (auto const& kind : kinds()) {
    if (!expected.contains(kind.name)) continue;
    auto const tokenizer = make_tokenizer(tokenizer_file(kind.file), kind.pattern);
    auto const ids = tokenizer->encode(text);
    std::ostringstream found;
    found << ids.size() << ' ' << std::hex;
    found.width(16);
    found.fill('0');
    found << XXH64(ids.data(), 4 * ids.size(), 0);
    EXPECT_EQ(found.str(), expected[kind.name]) << kind.name;
    if (kind.bytes) {
      EXPECT_EQ(tokenizer->decode(ids), text) << kind.name;
    }
  }
}

TEST(TokenizerReference, AnyBytesComeBack) {
  std::vector<std::string> const pieces = {"\xc3", "\xa9", "\xe2\x82", "\xac",     " ",           "\n",
                                           "a",    "'S",   "0",        "\xf0\x9f", "\xef\xbf\xbd"};
  for (auto const& kind : kinds()) {
    if (!kind.bytes) continue;
    auto const tokenizer = make_tokenizer(tokenizer_file(kind.file), kind.pattern);
    std::mt19937_64 random(7);
    for (int i = 0; i < 100'000; ++i) {
      std::string text;
      for (auto n = random() % 24; n > 0; --n) {
        if (i % 2 == 0)
          text.push_back(static_cast<char>(random()));
        else
          text += pieces[random() % pieces.size()];
      }
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << kind.name << ": " << readable(text);
    }
  }
}

// A run of one character is one word; a word costs n log n.
TEST(TokenizerReference, LongRuns) {
  for (auto const& kind : kinds()) {
    if (std::string_view(kind.file).ends_with(".model")) continue;
    auto const tokenizer = make_tokenizer(tokenizer_file(kind.file), kind.pattern);
    for (char const c : {' ', '7', '\n', 'x', '-'}) {
      std::string const text = "a" + std::string(100'000, c) + "b";
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << kind.name << " " << c;
    }
  }
}

}  // namespace
