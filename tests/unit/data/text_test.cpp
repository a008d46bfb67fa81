// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/data/token_source.hpp>

#include <support/temp_dir.hpp>
#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <filesystem>

namespace {
using namespace p3d;
using data::find_text_files;
using data::make_byte_text;
namespace fs = std::filesystem;

std::vector<std::string> names(std::vector<data::TextFile> const& files) {
  std::vector<std::string> out;
  for (auto const& f : files) out.push_back(fs::path(f.path).filename().string());
  return out;
}

std::string text(data::TokenSource const& source) {
  std::vector<int> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

// The parts of the message of the error that `f` throws.
template <class F>
base::ErrorText error_of(F&& f) {
  try {
    f();
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    EXPECT_FALSE(e.text().expected.empty() || e.text().found.empty() || e.text().where.empty() || e.text().fix.empty());
    return e.text();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(TextFiles, FoldersAreSortedByPathAndListsKeepTheirOrder) {
  test::TempDir const dir;
  dir.write("corpus/b/2.txt", "two");
  dir.write("corpus/b/10.txt", "ten");
  dir.write("corpus/a.txt", "a");
  dir.write("corpus/c.txt", "");
  auto const first = dir.write("z.txt", "zz");
  auto const files = find_text_files({first, dir / "corpus"});
  EXPECT_EQ(names(files), (std::vector<std::string>{"z.txt", "a.txt", "10.txt", "2.txt", "c.txt"}));
  EXPECT_EQ(files[0].bytes, 2);
  EXPECT_EQ(files[4].bytes, 0);
}

TEST(TextFiles, TheSameFileIsReadOnce) {
  test::TempDir const dir;
  auto const file = dir.write("corpus/x.txt", "x");
  dir.write("other/y.txt", "y");
  fs::create_symlink(file, dir.path() / "corpus/link.txt");  // to a file met under its own name too
  fs::create_directory_symlink(dir.path() / "other", dir.path() / "corpus/more");
  fs::create_directory_symlink(dir.path() / "corpus", dir.path() / "other/circle");
  EXPECT_EQ(names(find_text_files({dir / "corpus", file, dir / "corpus"})),
            (std::vector<std::string>{"link.txt", "y.txt"}));
}

TEST(TextFiles, NothingToReadIsAnError) {
  test::TempDir const dir;
  auto const missing = error_of([&] { find_text_files({dir / "nowhere"}); });
  EXPECT_NE(missing.found.find("nowhere: No such file"), std::string::npos) << missing.found;
  fs::create_directory(dir.path() / "empty");
  auto const empty = error_of([&] { find_text_files({dir / "empty"}); });
  EXPECT_NE(empty.found.find(dir / "empty"), std::string::npos);
  fs::create_symlink(dir / "gone", dir.path() / "empty/broken");
  EXPECT_NE(error_of([&] { find_text_files({dir / "empty"}); }).found.find("broken"), std::string::npos);
  error_of([] { find_text_files({}); });
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

}  // namespace
