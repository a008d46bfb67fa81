// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/base/text_file.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdio>
#include <fstream>

namespace {

using namespace p3d;

std::string refusal(std::string const& path, std::int64_t limit) {
  try {
    base::read_text_file(path, "a list", "--list", limit);
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    EXPECT_EQ(e.text().expected, "a list");
    EXPECT_EQ(e.text().where, "--list");
    EXPECT_FALSE(e.text().fix.empty());
    return e.text().found;
  }
  return "";
}

TEST(TextFile, IsReadWholeUpToTheLimit) {
  std::string const path = testing::TempDir() + "/p3d_text_file_test";
  for (std::size_t size : {0u, 1u, 65536u, 65537u, 200000u}) {
    std::ofstream(path, std::ios::binary) << std::string(size, 'x');
    EXPECT_EQ(base::read_text_file(path, "a list", "--list", 200000), std::string(size, 'x'));
  }
  EXPECT_EQ(refusal(path, 199999), path + " is larger than 195.31 KiB");
  std::remove(path.c_str());
  EXPECT_EQ(refusal(path, 10), "no file " + path);
}

// A pipe that nobody writes to would be waited for without end, and a device may have no end.
TEST(TextFile, OthersThanRegularFilesAreRefused) {
  std::string const path = testing::TempDir() + "/p3d_text_file_test_pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(refusal(path, 10), path + " is a pipe or a device");
  std::remove(path.c_str());
  EXPECT_EQ(refusal("/dev/zero", 10), "/dev/zero is a pipe or a device");
  EXPECT_EQ(refusal("/tmp", 10), "/tmp is a folder");
}

}  // namespace
