// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/text_file.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace p3d::base {

std::string read_text_file(std::string const& path, std::string const& expected, std::string const& where,
                           std::int64_t limit) {
  namespace fs = std::filesystem;
  auto const refuse = [&](std::string const& found, char const* fix) {
    base::refuse({.expected = expected, .found = found, .where = where, .fix = fix});
  };
  std::error_code error;
  auto const status = fs::status(path, error);
  if (fs::is_directory(status)) refuse(path + " is a folder", "name a file in it");
  if (!fs::exists(status)) refuse("no file " + path, "correct the path");
  if (!fs::is_regular_file(status)) refuse(path + " is a pipe or a device", "write its text to a file, and name that");
  std::string text;
  std::ifstream file(path, std::ios::binary);
  while (file && static_cast<std::int64_t>(text.size()) <= limit) {
    auto const have = text.size();
    text.resize(have + 65536);
    file.read(text.data() + have, 65536);
    text.resize(have + static_cast<std::size_t>(file.gcount()));
  }
  if (static_cast<std::int64_t>(text.size()) > limit)
    refuse(fmt::format("{} is larger than {}", path, human_bytes(static_cast<double>(limit))), "name another file");
  if (!file.eof()) refuse(fmt::format("{}: {}", path, std::strerror(errno)), "make it readable");
  return text;
}

}  // namespace p3d::base
