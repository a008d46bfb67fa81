// SPDX-License-Identifier: Apache-2.0
// Finds the files behind paths: a file stands for itself, a folder for the files below it. The order is the same on
// every machine (bytewise by path), as the order of training data depends on it, and a file that is reached on two
// ways, by a link for example, counts once.
#include <p3d/text/text_files.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

namespace p3d::text {

namespace fs = std::filesystem;

namespace {

/// Throws for a path that cannot be read. `key` is the key of the input that named it.
[[noreturn]] void cannot_read(fs::path const& path, std::error_code const& why, std::string const& key) {
  base::refuse({.expected = "a file or folder that this process may read",
                .found = fmt::format("{}: {}", path.string(), why.message()),
                .where = key,
                .fix = fmt::format("correct {}, or make the file readable on every node", key)});
}

/// The entries of a folder, sorted bytewise.
std::vector<fs::path> sorted_entries(fs::path const& folder, std::string const& key) {
  std::error_code why;
  std::vector<fs::path> out;
  for (fs::directory_iterator it(folder, why), end; !why && it != end; it.increment(why)) out.push_back(it->path());
  if (why) cannot_read(folder, why, key);
  std::sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.string() < b.string(); });
  return out;
}

/// Collects the regular files below a path. `folders` holds the real folders on the way, so that links cannot form a
/// circle.
void collect(fs::path const& path, std::string const& key, std::set<fs::path>& folders, std::vector<fs::path>& files) {
  std::error_code why;
  auto const status = fs::status(path, why);
  if (!fs::exists(status))
    cannot_read(path, why ? why : std::make_error_code(std::errc::no_such_file_or_directory), key);
  if (fs::is_regular_file(status)) {
    files.push_back(path);
  } else if (fs::is_directory(status)) {
    auto const real = fs::canonical(path, why);
    if (why) cannot_read(path, why, key);
    if (!folders.insert(real).second) return;
    for (auto const& entry : sorted_entries(path, key)) collect(entry, key, folders, files);
  }
}

}  // namespace

std::vector<TextFile> find_files(std::vector<std::string> const& paths, std::string const& suffix, char const* what,
                                 std::string const& key) {
  std::vector<TextFile> out;
  std::set<fs::path> seen, folders;
  for (auto const& path : paths) {
    std::vector<fs::path> files;
    collect(path, key, folders, files);
    if (fs::is_directory(path))
      std::erase_if(files, [&](auto const& file) { return !file.string().ends_with(suffix); });
    std::sort(files.begin(), files.end(), [](auto const& a, auto const& b) { return a.string() < b.string(); });
    for (auto const& file : files) {
      std::error_code why;
      auto const real = fs::canonical(file, why);
      if (why) cannot_read(file, why, key);
      if (!seen.insert(real).second) continue;
      auto const bytes = fs::file_size(real, why);
      if (why) cannot_read(file, why, key);
      out.push_back({file.string(), static_cast<std::int64_t>(bytes)});
    }
  }
  if (out.empty()) {
    auto const kind = suffix.empty() ? "regular file" : "*" + suffix;
    base::refuse({.expected = "at least one file to train on",
                  .found = paths.empty() ? "no path" : fmt::format("no {} in {}", kind, base::join(paths)),
                  .where = key,
                  .fix = fmt::format("name a {0} file or a folder with {0} files", what)});
  }
  return out;
}

std::vector<TextFile> find_text_files(std::vector<std::string> const& paths) {
  return find_files(paths, "", "text", "data.path");
}

std::vector<std::string> find_prefixes(std::vector<std::string> const& paths, std::string const& key) {
  std::vector<std::string> indices;
  for (auto const& path : paths) {
    std::error_code ignored;
    bool const named = path.ends_with(".bin") || path.ends_with(".idx");
    auto const prefix = named ? path.substr(0, path.size() - 4) : path;
    // A path may be a prefix, one of the two files, or a folder of pairs.
    if (!fs::exists(prefix + ".idx", ignored) && fs::is_directory(path, ignored)) {
      indices.push_back(path);
      continue;
    }
    if (!fs::exists(prefix + ".idx", ignored)) {
      bool const half = fs::exists(prefix + ".bin", ignored);
      base::refuse({.expected = fmt::format("{0}.idx and {0}.bin", prefix),
                    .found = half ? fmt::format("{}.bin without its index", prefix) : "neither of them",
                    .where = key,
                    .fix = half ? "copy the .idx file to the side of the .bin file"
                                : fmt::format("correct {}: the two files' path without .bin and .idx", key)});
    }
    indices.push_back(prefix + ".idx");
  }
  std::vector<std::string> out;
  for (auto const& file : find_files(indices, ".idx", ".idx", key))
    out.push_back(file.path.substr(0, file.path.size() - 4));
  return out;
}

std::int64_t total_bytes(std::vector<TextFile> const& files) {
  std::int64_t bytes = 0;
  for (auto const& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace p3d::text
