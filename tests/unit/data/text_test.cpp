// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/text/tokenizer.hpp>

#include <support/temp_dir.hpp>
#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <filesystem>

namespace {
using namespace p3d;
using test::error_of;
using data::make_byte_text;
namespace fs = std::filesystem;

std::string text(data::TokenSource const& source) {
  std::vector<int> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

TEST(ByteText, FilesFollowEachOtherAsBytes) {
  test::TempDir const dir;
  dir.write("1", "ab\n");
  dir.write("2", "");
  dir.write("3", "\xff\x01");
  auto const source = make_byte_text({dir.path().string()}, 256);
  ASSERT_EQ(source->size(), 5);
  std::vector<int> all(5);
  source->read(0, all);
  EXPECT_EQ(all, (std::vector<int>{97, 98, 10, 255, 1}));
  std::vector<int> part(2);
  source->read(2, part);
  EXPECT_EQ(part, (std::vector<int>{10, 255}));
  test::expect_error([&] { source->read(4, part); }, "the tokens exist");
  test::expect_error([&] { source->read(-1, part); }, "the tokens exist");
}

TEST(ByteText, HashIsOfTheContentOnly) {
  test::TempDir const dir;
  auto const abc = dir.write("abc", "abc"), ab = dir.write("ab", "ab"), c = dir.write("c", "c"),
             abd = dir.write("abd", "abd");
  EXPECT_EQ(make_byte_text({abc}, 256)->hash(), 0x44bc2cf5ad770999u);  // XXH64("abc", seed 0), published
  EXPECT_EQ(text(*make_byte_text({ab, c}, 256)), "abc");
  EXPECT_EQ(make_byte_text({ab, c}, 256)->hash(), make_byte_text({abc}, 256)->hash());
  EXPECT_NE(make_byte_text({abd}, 256)->hash(), make_byte_text({abc}, 256)->hash());
  EXPECT_NE(make_byte_text({c, ab}, 256)->hash(), make_byte_text({abc}, 256)->hash());
}

TEST(ByteText, SaysWhichByteIsNotInTheVocabulary) {
  test::TempDir const dir;
  auto const a = dir.write("a", "hello"), empty = dir.write("b", ""), bad = dir.write("c", "wo\xc3\xa9");
  EXPECT_NO_THROW(make_byte_text({a}, 128));
  auto const e = error_of([&] { make_byte_text({a, empty, bad}, 128); });
  EXPECT_EQ(e.found, "byte 195");
  EXPECT_EQ(e.where, bad + ", byte 3 of the file");
  EXPECT_NE(e.fix.find("196"), std::string::npos);
  EXPECT_NO_THROW(make_byte_text({bad}, 196));
}

TEST(ByteText, NoBytesAtAllIsAnError) {
  test::TempDir const dir;
  auto const file = dir.write("empty", "");
  EXPECT_NE(error_of([&] { make_byte_text({file}, 256); }).found.find(file), std::string::npos);
}

TEST(TokenizedText, EndsEachFileWithTheTokenForIt) {
  test::TempDir const dir;
  auto const a = dir.write("a", "the same"), b = dir.write("b", ""), c = dir.write("c", "\xff");
  auto const tokenizer = text::make_tokenizer(std::string(P3D_SOURCE_DIR) + "/tests/unit/text/tokenizers/gpt2.json");
  auto const source = data::make_tokenized_text({a, b, c}, *tokenizer);
  auto expected = tokenizer->encode("the same");
  expected.push_back(0);
  expected.push_back(tokenizer->encode("\xff").at(0));
  expected.push_back(0);
  ASSERT_EQ(source->size(), std::ssize(expected));
  std::vector<int> all(expected.size());
  source->read(0, all);
  EXPECT_EQ(all, expected);
  test::expect_error([&] { source->read(1, all); }, "the tokens exist");
  test::expect_error([&] { data::make_tokenized_text({b}, *tokenizer); }, "no token in 1 file");
}

}  // namespace
