// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

namespace p3d::data {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void cannot_read(fs::path const& path, std::error_code const& why) {
  throw base::Error({.expected = "a file or folder that this process may read",
                     .found = fmt::format("{}: {}", path.string(), why.message()),
                     .where = "data.path",
                     .fix = "correct data.path, or make the file readable on every node"},
                    base::ExitCode::bad_input);
}

std::vector<fs::path> sorted_entries(fs::path const& folder) {
  std::error_code why;
  std::vector<fs::path> out;
  for (fs::directory_iterator it(folder, why), end; !why && it != end; it.increment(why)) out.push_back(it->path());
  if (why) cannot_read(folder, why);
  std::sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.string() < b.string(); });
  return out;
}

/// Collects the regular files below a path. `folders` holds the real folders on the way, so links cannot go in circles.
void collect(fs::path const& path, std::set<fs::path>& folders, std::vector<fs::path>& files) {
  std::error_code why;
  auto const status = fs::status(path, why);
  if (!fs::exists(status)) cannot_read(path, why ? why : std::make_error_code(std::errc::no_such_file_or_directory));
  if (fs::is_regular_file(status)) {
    files.push_back(path);
  } else if (fs::is_directory(status)) {
    auto const real = fs::canonical(path, why);
    if (why) cannot_read(path, why);
    if (!folders.insert(real).second) return;
    for (auto const& entry : sorted_entries(path)) collect(entry, folders, files);
  }
}

}  // namespace

std::vector<TextFile> find_text_files(std::vector<std::string> const& paths) {
  std::vector<TextFile> out;
  std::set<fs::path> seen, folders;
  for (auto const& path : paths) {
    std::vector<fs::path> files;
    collect(path, folders, files);
    std::sort(files.begin(), files.end(), [](auto const& a, auto const& b) { return a.string() < b.string(); });
    for (auto const& file : files) {
      std::error_code why;
      auto const real = fs::canonical(file, why);
      if (why) cannot_read(file, why);
      if (!seen.insert(real).second) continue;
      auto const bytes = fs::file_size(real, why);
      if (why) cannot_read(file, why);
      out.push_back({file.string(), static_cast<std::int64_t>(bytes)});
    }
  }
  if (out.empty()) {
    throw base::Error({.expected = "at least one file to train on",
                       .found = paths.empty() ? "no path" : fmt::format("no regular file in {}", base::join(paths)),
                       .where = "data.path",
                       .fix = "name a text file or a folder with text files"},
                      base::ExitCode::bad_input);
  }
  return out;
}

std::int64_t total_bytes(std::vector<TextFile> const& files) {
  std::int64_t bytes = 0;
  for (auto const& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace p3d::data
