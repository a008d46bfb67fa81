// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/text/text_files.hpp>

#include <support/errors.hpp>
#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <filesystem>

namespace {
using namespace p3d;
using test::error_of;
using text::find_text_files;
namespace fs = std::filesystem;

std::vector<std::string> names(std::vector<text::TextFile> const& files) {
  std::vector<std::string> out;
  for (auto const& f : files) out.push_back(fs::path(f.path).filename().string());
  return out;
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

}  // namespace
