// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/io/text_file.hpp>

#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include <sys/stat.h>

namespace {
using namespace p3d;

std::string message(void (*action)(std::string const&), std::string const& path) {
  try {
    action(path);
  } catch (base::Error const& e) {
    EXPECT_FALSE(e.text().fix.empty());
    EXPECT_EQ(e.text().where, path);
    return e.text().found;
  }
  return "no error";
}

auto files_in(std::filesystem::path const& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST(TextFile, RoundTripsAnyBytes) {
  test::TempDir const dir;
  std::string text(10000, 'x');
  text[4095] = '\0';
  text[4096] = '\n';
  io::write_text_atomically(dir / "a", text);
  EXPECT_EQ(io::read_text(dir / "a"), text);
  io::write_text_atomically(dir / "a", "");
  EXPECT_EQ(io::read_text(dir / "a"), "");
  EXPECT_EQ(files_in(dir.path()), 1) << "a temporary file is left";
}

TEST(TextFile, AnOldReaderKeepsTheOldText) {
  test::TempDir const dir;
  auto const path = dir.write("a", "old");
  std::ifstream reader(path);
  io::write_text_atomically(path, "new");
  std::string seen;
  reader >> seen;
  EXPECT_EQ(seen, "old") << "the file was replaced, not overwritten";
  EXPECT_EQ(io::read_text(path), "new");
}

TEST(TextFile, AFailedWriteLeavesTheOldTextAndNoLitter) {
  test::TempDir const dir;
  auto const write = [](std::string const& path) { io::write_text_atomically(path, "new"); };
  EXPECT_EQ(message(write, dir / "missing/a"), "No such file or directory");
  dir.write("folder/keep", "kept");  // a folder that is not empty cannot be replaced by a file
  EXPECT_EQ(message(write, dir / "folder"), "Is a directory");
  EXPECT_EQ(io::read_text(dir / "folder/keep"), "kept");
  EXPECT_EQ(files_in(dir.path()), 1) << "a temporary file is left";
}

TEST(TextFile, MissingFilesAndFoldersAreNamed) {
  test::TempDir const dir;
  EXPECT_EQ(message([](std::string const& p) { io::read_text(p); }, dir / "none"), "No such file or directory");
  EXPECT_EQ(message([](std::string const& p) { io::read_text(p); }, dir.path().string()), "a folder");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);  // reading it would wait for a writer
  EXPECT_EQ(message([](std::string const& p) { io::read_text(p); }, dir / "fifo"), "a FIFO (named pipe)");
  EXPECT_EQ(message([](std::string const& p) { io::read_text(p); }, "/dev/zero"), "a device");
  dir.write("file", "x");
  EXPECT_EQ(message(io::make_folder, dir / "file/below"), "Not a directory");
  EXPECT_EQ(message(io::make_folder, dir / "file"), "Not a directory");
  EXPECT_NO_THROW(io::make_folder(dir / "a/b/c"));
  EXPECT_NO_THROW(io::make_folder(dir / "a/b/c"));
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
}

}  // namespace
