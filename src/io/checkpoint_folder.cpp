// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/checkpoint_folder.hpp>

#include "posix_file.hpp"

#include <p3d/base/error.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/file_watch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>

namespace p3d::io {

namespace fs = std::filesystem;

namespace {

/// The name and step of a run: ("NAME", 15) for "NAME-00000015" + `ending`; nothing for other names of files.
std::optional<std::pair<std::string, std::int64_t>> parse_name(std::string name, std::string_view ending) {
  if (!name.ends_with(ending)) return {};
  name.resize(name.size() - ending.size());
  auto const dash = name.rfind('-');
  if (dash == std::string::npos || name.size() - dash - 1 < 8) return {};
  std::int64_t step = 0;
  auto const* last = name.data() + name.size();
  auto const [end, problem] = std::from_chars(name.data() + dash + 1, last, step);
  if (problem != std::errc{} || end != last || step < 0) return {};
  return std::pair(name.substr(0, dash), step);
}

/// Calls visit(entry) for every regular file of a folder. The folder is read to its end first, so `visit` may delete
/// files.
template <class Visit>
void for_files(std::string const& dir, Visit&& visit) {
  std::error_code error;
  std::vector<fs::directory_entry> files;
  {
    FileOperation const here("readdir", dir);
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (it->is_regular_file(ignored)) files.push_back(*it);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw base::Error({.expected = "a folder of checkpoints that can be read",
                       .found = error.message(),
                       .where = dir,
                       .fix = "check the path and its permissions, or choose another checkpoint.dir"});
  }
  for (auto const& file : files) visit(file);
}

}  // namespace

std::string checkpoint_path(std::string const& dir, std::string const& run_name, std::int64_t step) {
  return fmt::format("{}/{}-{:08}.h5", dir, run_name, step);
}

std::vector<CheckpointFile> find_checkpoints(std::string const& dir, std::string const& run_name) {
  std::vector<CheckpointFile> out;
  for_files(dir, [&](fs::directory_entry const& entry) {
    auto const name = parse_name(entry.path().filename().string(), ".h5");
    if (!name || (!run_name.empty() && name->first != run_name)) return;
    CheckpointFile f;
    f.path = entry.path().string();
    std::tie(f.run_name, f.step) = *name;
    std::error_code ignored;
    f.file_bytes = static_cast<std::int64_t>(entry.file_size(ignored));
    try {
      auto const inside = read_checkpoint(f.path).header.step;
      f.valid = inside == f.step;
      if (!f.valid) f.error = fmt::format("holds step {}", inside);
    } catch (base::Error const& e) {
      f.error = fmt::format("expected {}, found {}", e.text().expected, e.text().found);
    }
    out.push_back(std::move(f));
  });
  std::sort(out.begin(), out.end(),
            [](auto const& a, auto const& b) { return std::tie(a.run_name, a.step) < std::tie(b.run_name, b.step); });
  return out;
}

std::vector<std::string> prune_checkpoints(std::string const& dir, std::string const& run_name,
                                           std::int64_t newest_step, std::int64_t keep, std::string const& spared) {
  std::vector<std::string> out;
  if (keep <= 0) return out;
  auto files = find_checkpoints(dir, run_name);
  std::error_code missing;
  std::erase_if(files, [&](auto const& f) {
    return !f.valid || f.step > newest_step || (!spared.empty() && fs::equivalent(f.path, spared, missing));
  });
  // Without the newest one itself, nothing makes the older ones superfluous.
  if (files.empty() || files.back().step != newest_step) return out;
  while (static_cast<std::int64_t>(files.size()) > keep) {
    std::error_code error;
    FileOperation const here("unlink", files.front().path);
    fs::remove(files.front().path, error);
    if (error) {
      throw base::Error({.expected = "an old checkpoint that can be deleted",
                         .found = error.message(),
                         .where = files.front().path,
                         .fix = "check its permissions, or set checkpoint.keep = 0"});
    }
    out.push_back(files.front().path);
    files.erase(files.begin());
  }
  return out;
}

std::vector<std::string> remove_unfinished(std::string const& dir, std::string const& run_name) {
  std::vector<std::string> out;
  for_files(dir, [&](fs::directory_entry const& entry) {
    auto const name = parse_name(entry.path().filename().string(), ".h5.part");
    if (name && name->first == run_name) out.push_back(entry.path().string());
  });
  for (auto const& path : out) remove_if_there(path);
  return out;
}

}  // namespace p3d::io
